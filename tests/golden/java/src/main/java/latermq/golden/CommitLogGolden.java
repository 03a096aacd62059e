/** Appends messages of every shape to a real store; its commit log, queues, index and checkpoint are the golden. */
package latermq.golden;

import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageClientExt;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBatch;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;

final class CommitLogGolden {
    private static final int SEGMENT_BYTES = 4096;
    private static final int ENTRIES_PER_QUEUE_FILE = 8;
    private static final int HASH_SLOTS = 16;
    private static final int INDEX_ENTRIES = 20;
    private static final String IPV4 = "c0a8010a";
    private static final String IPV4_STORE = "0a000001";
    private static final String IPV6 = "20010db8000000000000000000000001";
    private static final String IPV6_STORE = "20010db8000000000000000000000002";

    private final FixedClockStore store;
    private final List<Object> puts = new ArrayList<>();

    private CommitLogGolden(FixedClockStore store) {
        this.store = store;
    }

    static void write(Output out, Path scratch) throws Exception {
        writeStore(out, scratch.resolve("plain"), "store", false);
        writeStore(out, scratch.resolve("crc"), "store-crc", true);
    }

    private static void writeStore(Output out, Path root, String name, boolean withCrc) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setMappedFileSizeCommitLog(SEGMENT_BYTES);
        config.setMappedFileSizeConsumeQueue(ENTRIES_PER_QUEUE_FILE * 20);
        config.setMaxHashSlotNum(HASH_SLOTS);
        config.setMaxIndexNum(INDEX_ENTRIES);
        config.setEnabledAppendPropCRC(withCrc);
        config.setTimerWheelEnable(false);

        FixedClockStore store = FixedClockStore.open(config, root);
        CommitLogGolden golden = new CommitLogGolden(store);
        if (withCrc) {
            golden.putCrc();
        } else {
            golden.putShapes();
            golden.putMany();
            golden.writePullBody(out);
        }
        store.waitForDispatch();
        long end = store.getMaxPhyOffset();
        store.shutdown();

        copyFiles(out, root, name, end);
        out.json(name + ".json", Output.map("segment_bytes", SEGMENT_BYTES,
            "entries_per_queue_file", ENTRIES_PER_QUEUE_FILE, "hash_slots", HASH_SLOTS,
            "index_entries", INDEX_ENTRIES, "end_offset", end, "puts", golden.puts));
    }

    private void putShapes() throws Exception {
        put("empty body", message("TopicGolden", 0, new byte[0], Map.of()));
        put("one byte", message("TopicGolden", 1, new byte[] {0x61}, Map.of()));
        put("200 bytes, no properties", message("TopicGolden", 2, pattern(200), Map.of()));
        put("tags and one key", message("TopicGolden", 0, utf8("hello"), ordered("TAGS", "TagA", "KEYS", "order-4711")));
        put("several keys and a unique key", message("TopicGolden", 0, utf8("keys"),
            ordered("UNIQ_KEY", "C0A8010A04D22A139A5518B4AAC20000", "KEYS", "k1 k2  k3", "WAIT", "true", "TAGS", "TagB")));
        put("unicode in body, tags, keys and properties", message("TopicGolden", 0, utf8("grüße 你好 🚀"),
            ordered("TAGS", "标签", "KEYS", "ключ 🔑", "naïve", "Zürich 東京 🚀")));
        put("tag with a negative hash code", message("TopicGolden", 0, utf8("neg"), ordered("TAGS", "polygenelubricants")));
        put("dangling property string", withPropertiesString(message("TopicGolden", 0, utf8("open"), Map.of()),
            "TAGS\u0001TagC\u0002a\u0001b"));

        MessageExtBrokerInner compressed = message("TopicGolden", 3, UtilAll.compress(pattern(600), 5), ordered("TAGS", "Z"));
        compressed.setSysFlag(MessageSysFlag.COMPRESSED_FLAG | MessageSysFlag.COMPRESSION_ZLIB_TYPE);
        put("zlib body, compressed flag", compressed);

        MessageExtBrokerInner flagged = message("TopicGolden", 4, utf8("flags"), ordered("TAGS", "A||B"));
        flagged.setFlag(0x12345678);
        flagged.setSysFlag(MessageSysFlag.MULTI_TAGS_FLAG);
        flagged.setReconsumeTimes(3);
        flagged.setPreparedTransactionOffset(0x4000000000000007L);
        put("flag, multi-tags, reconsume times, prepared offset", flagged);

        MessageExtBrokerInner born6 = message("TopicGolden", 5, utf8("v6 born"), Map.of());
        born6.setBornHost(FixedClockStore.host(IPV6, 51234));
        put("IPv6 born host", born6);
        MessageExtBrokerInner store6 = message("TopicGolden", 5, utf8("v6 store"), Map.of());
        store6.setStoreHost(FixedClockStore.host(IPV6_STORE, 10911));
        put("IPv6 store host", store6);
        MessageExtBrokerInner both6 = message("TopicGolden", 5, utf8("v6 both"), ordered("TAGS", "six"));
        both6.setBornHost(FixedClockStore.host(IPV6, 65535));
        both6.setStoreHost(FixedClockStore.host(IPV6_STORE, 10911));
        put("IPv6 both hosts", both6);

        put("topic of 127 characters", message("t".repeat(127), 0, utf8("v1"), ordered("TAGS", "TagA")));
        put("topic of 128 characters, second magic", message("t".repeat(128), 0, utf8("v2"), ordered("TAGS", "TagA")));
        put("topic of 200 characters, second magic", message("L".repeat(200), 0, utf8("v2"), Map.of()));
        put("retry topic", message("%RETRY%golden-group", 0, utf8("again"),
            ordered("RETRY_TOPIC", "TopicGolden", "ORIGIN_MESSAGE_ID", "0A00000100002A9F0000000000000000")));
        put("level 3 in the level topic", message("SCHEDULE_TOPIC_XXXX", 2, utf8("in 10 s"),
            ordered("DELAY", "3", "REAL_TOPIC", "TopicGolden", "REAL_QID", "1", "TAGS", "TagA")));
        put("level 18 in the level topic", message("SCHEDULE_TOPIC_XXXX", 17, utf8("in 2 h"),
            ordered("DELAY", "18", "REAL_TOPIC", "TopicGolden", "REAL_QID", "1")));

        putTransaction("prepared", MessageSysFlag.TRANSACTION_PREPARED_TYPE, 0);
        putTransaction("commit", MessageSysFlag.TRANSACTION_COMMIT_TYPE, 123456);
        putTransaction("rollback", MessageSysFlag.TRANSACTION_ROLLBACK_TYPE, 123456);
        putBatch();
    }

    /** Enough entries in one queue to fill its first files, and in the log to fill several segments. */
    private void putMany() throws Exception {
        for (int i = 0; i < 20; i++) {
            put("many " + i, message("TopicMany", 0, pattern(300 + i), ordered("TAGS", "Tag" + i % 3, "KEYS", "many-" + i)));
        }
    }

    private void putCrc() throws Exception {
        put("no properties", message("TopicCrc", 0, utf8("crc"), Map.of()));
        put("properties", message("TopicCrc", 0, utf8("crc"), ordered("TAGS", "TagA")));
        put("open property string", withPropertiesString(message("TopicCrc", 0, utf8("crc"), Map.of()), "TAGS\u0001TagA"));
    }

    private void putTransaction(String label, int type, long preparedOffset) throws Exception {
        MessageExtBrokerInner message = message("TopicTransaction", 0, utf8(label), ordered("TAGS", "Tx", "KEYS", "tx-" + label));
        message.setSysFlag(type);
        message.setPreparedTransactionOffset(preparedOffset);
        put("transaction " + label, message);
    }

    private void putBatch() throws Exception {
        MessageExtBatch batch = new MessageExtBatch();
        fill(batch, "TopicBatch", 1, batchBody(), Map.of());
        PutMessageResult result = store.putMessages(batch);
        record("batch of three", batch, result);
    }

    static byte[] batchBody() {
        List<Message> messages = new ArrayList<>();
        for (int i = 0; i < 3; i++) {
            Message message = new Message("TopicBatch", pattern(10 * i));
            message.setFlag(i);
            MessageAccessor.setProperties(message, ordered("TAGS", "Tag" + i, "KEYS", "batch-" + i));
            messages.add(message);
        }
        return MessageDecoder.encodeMessages(messages);
    }

    private void put(String label, MessageExtBrokerInner message) throws Exception {
        record(label, message, store.putMessage(message));
    }

    private void record(String label, MessageExtBrokerInner message, PutMessageResult result) throws Exception {
        if (!result.isOk()) {
            throw new IllegalStateException(label + ": " + result.getPutMessageStatus());
        }
        InetSocketAddress born = (InetSocketAddress) message.getBornHost();
        InetSocketAddress stored = (InetSocketAddress) message.getStoreHost();
        puts.add(Output.map(
            "label", label,
            "batch", message instanceof MessageExtBatch,
            "offset", result.getAppendMessageResult().getWroteOffset(),
            "size", result.getAppendMessageResult().getWroteBytes(),
            "message_id", result.getAppendMessageResult().getMsgId(),
            "topic", message.getTopic(),
            "queue_id", message.getQueueId(),
            "queue_offset", result.getAppendMessageResult().getLogicsOffset(),
            "flag", message.getFlag(),
            "sys_flag", message.getSysFlag(),
            "body_crc", message.getBodyCRC(),
            "born_ms", message.getBornTimestamp(),
            "born_ip_hex", Output.hex(born.getAddress().getAddress()),
            "born_port", born.getPort(),
            "store_ms", result.getAppendMessageResult().getStoreTimestamp(),
            "store_ip_hex", Output.hex(stored.getAddress().getAddress()),
            "store_port", stored.getPort(),
            "reconsume_times", message.getReconsumeTimes(),
            "prepared_transaction_offset", message.getPreparedTransactionOffset(),
            "body_hex", Output.hex(message.getBody()),
            "properties_string", message.getPropertiesString()));
        store.waitForDispatch();
        store.advance(777);
    }

    /** What a pull answers: the records of a queue, one after the other, and how Apache's client reads them. */
    private void writePullBody(Output out) throws Exception {
        GetMessageResult result = store.getMessage("golden-group", "TopicGolden", 0, 0, 32, null);
        ByteBuffer body = ByteBuffer.allocate(result.getBufferTotalSize());
        result.getMessageBufferList().forEach(body::put);
        result.release();
        out.bytes("pull-body.bin", body.array());
        List<Object> decoded = new ArrayList<>();
        for (MessageExt message : MessageDecoder.decodesBatch(ByteBuffer.wrap(body.array()), true, true, true)) {
            decoded.add(Output.map("message_id", message.getMsgId(),
                "offset_message_id", ((MessageClientExt) message).getOffsetMsgId(), "topic", message.getTopic(),
                "queue_id", message.getQueueId(), "queue_offset", message.getQueueOffset(),
                "commit_log_offset", message.getCommitLogOffset(), "store_size", message.getStoreSize(),
                "tags", message.getTags(), "keys", message.getKeys(), "body_hex", Output.hex(message.getBody()),
                "properties", message.getProperties()));
        }
        out.json("pull-body.json", Output.map("topic", "TopicGolden", "queue_id", 0, "messages", decoded));
    }

    /** Only what the store wrote: not its lock file, nor the segments it keeps ready ahead of the log's end. */
    private static void copyFiles(Output out, Path root, String name, long end) throws Exception {
        int indexFiles = 0;
        for (Path file : Output.filesBelow(root)) {
            String folder = file.getName(0).toString();
            String target = name + "/" + file;
            if (folder.equals("commitlog") && Long.parseLong(file.getFileName().toString()) >= end) {
                continue;
            } else if (folder.equals("index")) {
                // Named after the wall clock; their order is all that matters.
                target = name + "/index/" + indexFiles++;
            } else if (!folder.equals("commitlog") && !folder.equals("consumequeue") && !folder.equals("checkpoint")) {
                continue;
            }
            out.bytes(target, Files.readAllBytes(root.resolve(file)));
        }
    }

    private static MessageExtBrokerInner message(String topic, int queueId, byte[] body, Map<String, String> properties)
        throws Exception {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        fill(message, topic, queueId, body, properties);
        return message;
    }

    private static void fill(MessageExtBrokerInner message, String topic, int queueId, byte[] body,
        Map<String, String> properties) throws Exception {
        message.setTopic(topic);
        message.setQueueId(queueId);
        message.setBody(body);
        MessageAccessor.setProperties(message, new LinkedHashMap<>(properties));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        message.setBornTimestamp(FixedClockStore.START_MS - 1234);
        message.setBornHost(FixedClockStore.host(IPV4, 51234));
        message.setStoreHost(FixedClockStore.host(IPV4_STORE, 10911));
    }

    private static MessageExtBrokerInner withPropertiesString(MessageExtBrokerInner message, String properties) {
        message.setPropertiesString(properties);
        return message;
    }

    static Map<String, String> ordered(String... namesAndValues) {
        Map<String, String> map = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            map.put(namesAndValues[i], namesAndValues[i + 1]);
        }
        return map;
    }

    static byte[] pattern(int length) {
        byte[] bytes = new byte[length];
        for (int i = 0; i < length; i++) {
            bytes[i] = (byte) (i * 7);
        }
        return bytes;
    }

    static byte[] utf8(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }
}
