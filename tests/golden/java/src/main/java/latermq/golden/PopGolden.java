/** The strings of POP consumption: receipt handles, offset infos, and bit sets of batch acknowledgements. */
package latermq.golden;

import com.alibaba.fastjson2.JSON;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.BitSet;
import java.util.List;
import java.util.TreeMap;
import org.apache.rocketmq.broker.pop.orderly.QueueLevelConsumerManager;
import org.apache.rocketmq.common.KeyBuilder;
import org.apache.rocketmq.common.PopAckConstants;
import org.apache.rocketmq.common.consumer.ReceiptHandle;
import org.apache.rocketmq.remoting.protocol.body.BatchAck;
import org.apache.rocketmq.remoting.protocol.header.ExtraInfoUtil;
import org.apache.rocketmq.store.pop.AckMsg;
import org.apache.rocketmq.store.pop.BatchAckMsg;
import org.apache.rocketmq.store.pop.PopCheckPoint;

final class PopGolden {
    private static final String GROUP = "golden-group";
    private static final String TOPIC = "TopicGolden";

    static void write(Output out, Path scratch) throws Exception {
        List<String> topics = List.of(TOPIC, KeyBuilder.buildPopRetryTopicV1(TOPIC, GROUP),
            KeyBuilder.buildPopRetryTopicV2(TOPIC, GROUP));
        out.json("pop.json", Output.map("group", GROUP, "topic", TOPIC, "handles", handles(topics),
            "infos", infos(topics), "batch_acks", batchAcks(), "revive_records", reviveRecords(topics.get(1)),
            "order_info", orderInfo()));
    }

    private static List<Object> handles(List<String> topics) {
        List<Object> handles = new ArrayList<>();
        long offset = 4711;
        for (String topic : topics) {
            for (int reviveQueue : new int[] {3, KeyBuilder.POP_ORDER_REVIVE_QUEUE}) {
                long popTime = FixedClockStore.START_MS + offset;
                String text = ExtraInfoUtil.buildExtraInfo(offset, popTime, 60_000, reviveQueue, topic, "broker-a", 2, offset + 5);
                String[] parts = ExtraInfoUtil.split(text);
                ReceiptHandle handle = ReceiptHandle.builder().startOffset(offset).retrieveTime(popTime).invisibleTime(60_000)
                    .reviveQueueId(reviveQueue).topicType(ExtraInfoUtil.getRetry(parts)).brokerName("broker-a").queueId(2)
                    .offset(offset + 5).commitLogOffset(1L << 40).build();
                handles.add(Output.map("pop_ck", text, "receipt_handle", handle.encode(), "start_offset", offset,
                    "pop_ms", popTime, "invisible_ms", 60_000, "revive_queue_id", reviveQueue, "mark", handle.getTopicType(),
                    "broker_name", "broker-a", "queue_id", 2, "offset", offset + 5, "log_offset", 1L << 40,
                    "is_in_order", ExtraInfoUtil.isOrder(parts), "real_topic", handle.getRealTopic(TOPIC, GROUP)));
                offset += 1_000;
            }
        }
        return handles;
    }

    private static Object infos(List<String> topics) {
        StringBuilder starts = new StringBuilder();
        StringBuilder offsets = new StringBuilder();
        StringBuilder counts = new StringBuilder();
        int queueId = 0;
        for (String topic : topics) {
            List<Long> taken = List.of(100L + queueId, 101L + queueId, 140L + queueId);
            ExtraInfoUtil.buildStartOffsetInfo(starts, topic, queueId, 100L + queueId);
            ExtraInfoUtil.buildMsgOffsetInfo(offsets, topic, queueId, taken);
            ExtraInfoUtil.buildQueueOffsetOrderCountInfo(counts, topic, queueId, 101L + queueId, 2);
            ExtraInfoUtil.buildQueueIdOrderCountInfo(counts, topic, queueId, 1);
            queueId++;
        }
        return Output.map("start_offset_info", starts.toString(), "message_offset_info", offsets.toString(),
            "order_count_info", counts.toString(),
            "starts", new TreeMap<>(ExtraInfoUtil.parseStartOffsetInfo(starts.toString())),
            "offsets", new TreeMap<>(ExtraInfoUtil.parseMsgOffsetInfo(offsets.toString())),
            "counts", new TreeMap<>(ExtraInfoUtil.parseOrderCountInfo(counts.toString())));
    }

    /** As the body of a request has them. */
    private static List<Object> batchAcks() {
        List<Object> acks = new ArrayList<>();
        for (int[] bits : new int[][] {{}, {0}, {0, 1, 2, 31}, {7, 8, 63, 64, 65}, {1_000}}) {
            BitSet set = new BitSet();
            for (int bit : bits) {
                set.set(bit);
            }
            BatchAck ack = new BatchAck();
            ack.setBitSet(set);
            acks.add(Output.map("bits", bits, "encoded", JSON.parseObject(JSON.toJSONString(ack)).getString("b")));
        }
        return acks;
    }

    /** Bodies of the revive topic's records: two pops, a changed message, and acknowledgements. */
    private static List<Object> reviveRecords(String retryTopic) {
        PopCheckPoint pop = checkPoint(TOPIC, 10, FixedClockStore.START_MS, 60_000, 0, 1, 2, 5);
        PopCheckPoint retried = checkPoint(retryTopic, 3, FixedClockStore.START_MS + 1, 30_000, 0);
        PopCheckPoint changed = checkPoint(TOPIC, 12, FixedClockStore.START_MS + 2, 90_000, 0);
        changed.setSuspend(true);
        AckMsg origin = fill(new AckMsg(), pop);
        origin.setAckOffset(12);
        AckMsg single = fill(new AckMsg(), pop);
        single.setAckOffset(10);
        BatchAckMsg batch = new BatchAckMsg();
        fill(batch, pop);
        batch.setAckOffset(-1);
        batch.setAckOffsetList(new ArrayList<>(List.of(11L, 15L)));
        List<Object> records = new ArrayList<>();
        for (PopCheckPoint point : List.of(pop, retried, changed)) {
            records.add(Output.map("tag", PopAckConstants.CK_TAG, "body", JSON.toJSONString(point)));
        }
        for (AckMsg ack : List.of(origin, single)) {
            records.add(Output.map("tag", PopAckConstants.ACK_TAG, "body", JSON.toJSONString(ack)));
        }
        records.add(Output.map("tag", PopAckConstants.BATCH_ACK_TAG, "body", JSON.toJSONString(batch)));
        return records;
    }

    private static PopCheckPoint checkPoint(String topic, long first, long popTime, long invisibleTime, int... distances) {
        PopCheckPoint point = new PopCheckPoint();
        point.setTopic(topic);
        point.setCId(GROUP);
        point.setQueueId(2);
        point.setStartOffset(first);
        point.setPopTime(popTime);
        point.setInvisibleTime(invisibleTime);
        point.setNum((byte) distances.length);
        point.setBrokerName("broker-a");
        for (int distance : distances) {
            point.addDiff(distance);
        }
        return point;
    }

    private static AckMsg fill(AckMsg ack, PopCheckPoint point) {
        ack.setTopic(point.getTopic());
        ack.setConsumerGroup(point.getCId());
        ack.setQueueId(point.getQueueId());
        ack.setStartOffset(point.getStartOffset());
        ack.setPopTime(point.getPopTime());
        ack.setBrokerName(point.getBrokerName());
        return ack;
    }

    /** consumerOrderInfo.json: four messages, of which the second delivery of the first three is in flight. */
    private static String orderInfo() {
        QueueLevelConsumerManager orders = new QueueLevelConsumerManager();
        orders.update("first", false, TOPIC, GROUP, 1, FixedClockStore.START_MS, 60_000, List.of(7L, 8L, 10L),
            new StringBuilder());
        orders.update("second", false, TOPIC, GROUP, 1, FixedClockStore.START_MS + 1, 30_000, List.of(7L, 8L, 10L, 11L),
            new StringBuilder());
        orders.commitAndNext(TOPIC, GROUP, 1, 8, FixedClockStore.START_MS + 1);
        orders.updateNextVisibleTime(TOPIC, GROUP, 1, 10, FixedClockStore.START_MS + 1, FixedClockStore.START_MS + 5_000);
        orders.getTable().values().forEach(queues -> queues.values().forEach(info -> info.setLastConsumeTimestamp(0)));
        return orders.encode();
    }
}
