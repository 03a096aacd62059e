/** Whole store directories of an Apache broker that was stopped cleanly, with a list of what is in them. */
package latermq.golden;

import java.io.IOException;
import java.net.ServerSocket;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.Callable;
import org.apache.rocketmq.broker.BrokerController;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyServerConfig;
import org.apache.rocketmq.store.MessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;

final class StoreDirectoryGolden {
    private static final String TOPIC = "TopicGolden";
    private static final String GROUP = "golden-group";

    private final BrokerController broker;
    private final MessageStoreConfig config;

    private StoreDirectoryGolden(Path root, boolean withTimers) throws Exception {
        config = new MessageStoreConfig();
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setMappedFileSizeCommitLog(16 * 1024);
        config.setMappedFileSizeConsumeQueue(32 * 20);
        config.setMappedFileSizeTimerLog(64 * 1024);
        config.setMaxHashSlotNum(64);
        config.setMaxIndexNum(128);
        config.setTimerWheelEnable(withTimers);
        config.setHaListenPort(FixedClockStore.freePort());
        NettyServerConfig server = new NettyServerConfig();
        server.setBindAddress("127.0.0.1");
        server.setListenPort(freePortPair());
        BrokerConfig brokerConfig = new BrokerConfig();
        brokerConfig.setBrokerName("broker-a");
        brokerConfig.setBrokerIP1("127.0.0.1");
        brokerConfig.setBrokerIP2("127.0.0.1");
        brokerConfig.setRecallMessageEnable(true);
        broker = new BrokerController(brokerConfig, server, new NettyClientConfig(), config);
    }

    static void write(Output out, Path scratch) throws Exception {
        write(out, scratch.resolve("apache-plain"), "apache-store", false);
        write(out, scratch.resolve("apache-timers"), "apache-store-timers", true);
    }

    private static void write(Output out, Path root, String name, boolean withTimers) throws Exception {
        StoreDirectoryGolden golden = new StoreDirectoryGolden(root, withTimers);
        if (!golden.broker.initialize()) {
            throw new IllegalStateException("the broker did not initialise");
        }
        golden.broker.start();
        golden.fill(withTimers);
        Map<String, Object> contents = golden.contents();
        golden.broker.shutdown();

        out.bytes(name + ".tar.gz", archive(root));
        out.json(name + ".json", contents);
    }

    /** A folder as an archive. */
    static byte[] archive(Path root) throws Exception {
        Path archive = root.resolveSibling(root.getFileName() + ".tar");
        // Sparse, since the timer wheel is 37 MB of zeros; sorted and without dates and owners, to be comparable.
        // Logs and options of RocksDB name folders of the machine they were made on, and so does the folder of the
        // store, which is empty of data.
        run("tar", "--create", "--sparse", "--format=gnu", "--sort=name", "--mtime=@0", "--owner=0", "--group=0",
            "--numeric-owner", "--exclude=./rocksdbstore", "--exclude=LOG*", "--exclude=OPTIONS*",
            "--file=" + archive, "--directory=" + root, ".");
        run("gzip", "--no-name", "--best", archive.toString());
        return Files.readAllBytes(archive.resolveSibling(archive.getFileName() + ".gz"));
    }

    private void fill(boolean withTimers) throws Exception {
        broker.getTopicConfigManager().createTopicInSendMessageMethod(TOPIC, "TBW102", "127.0.0.1:50000", 4, 0);
        broker.getSubscriptionGroupManager().findSubscriptionGroupConfig(GROUP);
        for (int i = 0; i < 24; i++) {
            put(i % 4, "plain-" + i, "TAGS", "Tag" + i % 2, "KEYS", "key-" + i, "UNIQ_KEY", uniqueKey(i));
        }
        put(0, "level 1, delivered", "DELAY", "1", "TAGS", "Level", "UNIQ_KEY", uniqueKey(100));
        put(1, "level 18, pending", "DELAY", "18", "TAGS", "Level", "KEYS", "pending-level", "UNIQ_KEY", uniqueKey(101));
        long expected = 7;
        if (withTimers) {
            long now = System.currentTimeMillis();
            put(0, "timer, delivered", "TIMER_DELIVER_MS", "" + (now + 1500), "TAGS", "Timer", "UNIQ_KEY", uniqueKey(200));
            put(1, "timer, due in 36 h", "TIMER_DELAY_SEC", "129600", "TAGS", "Timer", "KEYS", "pending-timer", "UNIQ_KEY", uniqueKey(201));
            put(2, "timer, due in 70 h", "TIMER_DELAY_MS", "252000123", "TAGS", "Timer", "UNIQ_KEY", uniqueKey(202));
            long due = now + 3_600_000;
            put(3, "timer, cancelled", "TIMER_DELIVER_MS", "" + due, "TAGS", "Timer", "UNIQ_KEY", uniqueKey(203));
            put(3, "0", "TIMER_DELIVER_MS", "" + due, "TIMER_DEL_UNIQKEY", TOPIC + "+" + uniqueKey(203), "UNIQ_KEY", uniqueKey(204));
            expected++;
        }
        long delivered = expected;
        waitUntil("delivery", () -> store().getMaxOffsetInQueue(TOPIC, 0) == delivered && store().dispatchBehindBytes() == 0);
        if (withTimers) {
            waitUntil("the wheel", () -> store().getTimerMessageStore().getCommitQueueOffset() == 5);
        }
        for (int queue = 0; queue < 4; queue++) {
            broker.getConsumerOffsetManager().commitOffset("127.0.0.1:50000", GROUP, TOPIC, queue, queue + 1);
        }
    }

    private void put(int queueId, String body, String... properties) throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        message.setTopic(TOPIC);
        message.setQueueId(queueId);
        message.setBody(CommitLogGolden.utf8(body));
        MessageAccessor.setProperties(message, CommitLogGolden.ordered(properties));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(FixedClockStore.host("7f000001", 50000));
        message.setStoreHost(FixedClockStore.host("7f000001", 10911));
        PutMessageResult result = store().putMessage(message);
        if (!result.isOk()) {
            throw new IllegalStateException(body + ": " + result.getPutMessageStatus());
        }
    }

    private Map<String, Object> contents() throws Exception {
        Map<String, Object> topics = new TreeMap<>();
        for (var topic : store().getQueueStore().getConsumeQueueTable().entrySet()) {
            Map<String, Object> queues = new TreeMap<>();
            for (ConsumeQueueInterface queue : topic.getValue().values()) {
                // The broker has asked for more queues than were ever written to.
                if (queue.getMaxOffsetInQueue() > 0) {
                    queues.put(Integer.toString(queue.getQueueId()), entries(queue));
                }
            }
            if (!queues.isEmpty()) {
                topics.put(topic.getKey(), queues);
            }
        }
        return Output.map("segment_bytes", config.getMappedFileSizeCommitLog(),
            "queue_file_bytes", config.getMappedFileSizeConsumeQueue(),
            "hash_slots", config.getMaxHashSlotNum(), "index_entries", config.getMaxIndexNum(),
            "end_offset", store().getMaxPhyOffset(), "topics", topics,
            "consumer_offsets", broker.getConsumerOffsetManager().getOffsetTable());
    }

    private List<Object> entries(ConsumeQueueInterface queue) {
        List<Object> entries = new ArrayList<>();
        for (long i = queue.getMinOffsetInQueue(); i < queue.getMaxOffsetInQueue(); i++) {
            CqUnit unit = queue.get(i);
            MessageExt message = store().lookMessageByOffset(unit.getPos(), unit.getSize());
            entries.add(Output.map("queue_offset", unit.getQueueOffset(), "offset", unit.getPos(), "size", unit.getSize(),
                "tags_code", unit.getTagsCode(), "store_ms", message.getStoreTimestamp(),
                "body", new String(message.getBody(), StandardCharsets.UTF_8),
                "properties", new TreeMap<>(message.getProperties())));
        }
        return entries;
    }

    private MessageStore store() {
        return broker.getMessageStore();
    }

    private static String uniqueKey(int number) {
        return String.format("7F00000104D22A139A5518B4AAC2%04X", number);
    }

    private static void waitUntil(String what, Callable<Boolean> done) throws Exception {
        long giveUpAt = System.nanoTime() + 30_000_000_000L;
        while (!done.call()) {
            if (System.nanoTime() > giveUpAt) {
                throw new IllegalStateException("waited in vain for " + what);
            }
            Thread.sleep(20);
        }
    }

    /** The broker also listens two ports below the one it is given. */
    private static int freePortPair() throws IOException {
        while (true) {
            int port = FixedClockStore.freePort();
            try (ServerSocket lower = new ServerSocket(port - 2)) {
                return port;
            } catch (IOException taken) {
                continue;
            }
        }
    }

    private static void run(String... command) throws Exception {
        int status = new ProcessBuilder(command).inheritIO().start().waitFor();
        if (status != 0) {
            throw new IllegalStateException(String.join(" ", command) + " ended with " + status);
        }
    }
}
