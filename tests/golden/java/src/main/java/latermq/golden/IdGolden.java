/** Message ids, unique keys and recall handles. */
package latermq.golden;

import java.lang.reflect.Field;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageId;
import org.apache.rocketmq.common.producer.RecallMessageHandle;
import sun.misc.Unsafe;

final class IdGolden {
    static void write(Output out, Path scratch) throws Exception {
        out.json("ids.json", Output.map("message_ids", messageIds(), "unique_keys", uniqueKeys(),
            "recall_handles", recallHandles(),
            "offset_key", Output.map("topic", "TopicGolden", "group", "golden-group",
                "key", "TopicGolden" + ConsumerOffsetManager.TOPIC_GROUP_SEPARATOR + "golden-group")));
    }

    private static List<Object> messageIds() throws Exception {
        List<Object> ids = new ArrayList<>();
        for (InetSocketAddress host : List.of(FixedClockStore.host("0a000001", 10911), FixedClockStore.host("ffffffff", 65535),
            FixedClockStore.host("20010db8000000000000000000000002", 10911))) {
            for (long offset : new long[] {0, 4711, 1L << 40, Long.MAX_VALUE}) {
                ByteBuffer address = MessageExt.socketAddress2ByteBuffer(host);
                ByteBuffer room = ByteBuffer.allocate(address.limit() + 8);
                String id = MessageDecoder.createMessageId(room, address, offset);
                MessageId decoded = MessageDecoder.decodeMessageId(id);
                if (decoded.getOffset() != offset || !decoded.getAddress().equals(host)) {
                    throw new IllegalStateException(id);
                }
                ids.add(Output.map("ip_hex", Output.hex(host.getAddress().getAddress()), "port", host.getPort(),
                    "offset", offset, "message_id", id));
            }
        }
        return ids;
    }

    /** The part that names the process is set, so that the golden does not name the machine it was made on. */
    private static List<Object> uniqueKeys() throws Exception {
        List<Object> keys = new ArrayList<>();
        for (String ip : List.of("C0A8010A", "20010DB8000000000000000000000001")) {
            String process = ip + "04D2" + "2A139A55";
            // Final fields that were set for this machine's own address, whose length decides the key's.
            replaceFinal("FIX_STRING", process.toCharArray());
            replaceFinal("LEN", process.length() / 2 + 6);
            AtomicInteger counter = (AtomicInteger) hidden("COUNTER").get(null);
            counter.set(0xFFFE);
            for (int i = 0; i < 3; i++) {
                int count = counter.get() & 0xFFFF;
                long before = System.currentTimeMillis();
                String key = MessageClientIDSetter.createUniqID();
                long after = System.currentTimeMillis();
                keys.add(Output.map("unique_key", key, "ip_hex", Output.hex(MessageClientIDSetter.getIPFromID(key)),
                    "pid", MessageClientIDSetter.getPidFromID(key), "instance_hex", "2a139a55",
                    "month_start_ms", hidden("startTime").get(null),
                    "created_from_ms", before, "created_to_ms", after, "counter", count));
            }
        }
        return keys;
    }

    private static Field hidden(String name) throws Exception {
        Field field = MessageClientIDSetter.class.getDeclaredField(name);
        field.setAccessible(true);
        return field;
    }

    private static void replaceFinal(String name, Object value) throws Exception {
        Field theUnsafe = Unsafe.class.getDeclaredField("theUnsafe");
        theUnsafe.setAccessible(true);
        Unsafe unsafe = (Unsafe) theUnsafe.get(null);
        Field field = hidden(name);
        field.get(null);  // has the class initialised first
        Object base = unsafe.staticFieldBase(field);
        if (value instanceof Integer number) {
            unsafe.putInt(base, unsafe.staticFieldOffset(field), number);
        } else {
            unsafe.putObject(base, unsafe.staticFieldOffset(field), value);
        }
    }

    private static List<Object> recallHandles() throws Exception {
        List<Object> handles = new ArrayList<>();
        for (String topic : List.of("TopicGolden", "Topic-2_%x", "主题")) {
            String timestamp = Long.toString(FixedClockStore.START_MS + 60_001);
            String uniqueKey = "C0A8010A04D22A139A5518B4AAC20000";
            String handle = RecallMessageHandle.HandleV1.buildHandle(topic, "broker-a", timestamp, uniqueKey);
            RecallMessageHandle.HandleV1 decoded = (RecallMessageHandle.HandleV1) RecallMessageHandle.decodeHandle(handle);
            handles.add(Output.map("handle", handle, "version", decoded.getVersion(), "topic", decoded.getTopic(),
                "broker_name", decoded.getBrokerName(), "timestamp", decoded.getTimestampStr(),
                "unique_key", decoded.getMessageId()));
        }
        return handles;
    }
}
