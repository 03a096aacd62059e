package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;
import org.apache.rocketmq.client.consumer.PullResult;
import org.apache.rocketmq.client.consumer.store.ReadOffsetType;
import org.apache.rocketmq.common.message.MessageQueue;

/** The pull consumer: a queue's offsets, a group's offsets, and messages from an offset that the caller names. */
@SuppressWarnings("deprecation")
final class Pulling {
    private static final Map<String, DefaultMQPullConsumer> CONSUMERS = new ConcurrentHashMap<>();

    private Pulling() {
    }

    static JSONObject queues(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = consumer(arguments);
        JSONArray array = new JSONArray();
        for (MessageQueue queue : new TreeSet<>(consumer.fetchSubscribeMessageQueues(arguments.getString("topic")))) {
            JSONObject json = Messages.json(queue);
            json.put("min", consumer.minOffset(queue));
            json.put("max", consumer.maxOffset(queue));
            json.put("earliest_ms", consumer.earliestMsgStoreTime(queue));
            array.add(json);
        }
        return JSONObject.of("queues", array);
    }

    static JSONObject pull(JSONObject arguments) throws Exception {
        String expression = arguments.getString("expression") == null ? "*" : arguments.getString("expression");
        DefaultMQPullConsumer consumer = consumer(arguments);
        long offset = arguments.getLongValue("offset");
        int count = arguments.getIntValue("count", 32);
        PullResult result = arguments.getBooleanValue("wait")
            ? consumer.pullBlockIfNotFound(queue(arguments), expression, offset, count)
            : consumer.pull(queue(arguments), expression, offset, count);
        JSONObject json = new JSONObject();
        json.put("status", result.getPullStatus().name());
        json.put("next", result.getNextBeginOffset());
        json.put("min", result.getMinOffset());
        json.put("max", result.getMaxOffset());
        json.put("messages", result.getMsgFoundList() == null ? new JSONArray() : Messages.json(result.getMsgFoundList()));
        return json;
    }

    static JSONObject offsetAt(JSONObject arguments) throws Exception {
        return JSONObject.of("offset",
            consumer(arguments).searchOffset(queue(arguments), arguments.getLongValue("time_ms")));
    }

    static JSONObject commit(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = consumer(arguments);
        consumer.updateConsumeOffset(queue(arguments), arguments.getLongValue("offset"));
        consumer.getOffsetStore().persist(queue(arguments));
        return new JSONObject();
    }

    static JSONObject committed(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = consumer(arguments);
        return JSONObject.of("offset", consumer.getOffsetStore().readOffset(queue(arguments), ReadOffsetType.READ_FROM_STORE));
    }

    static DefaultMQPullConsumer consumer(JSONObject arguments) {
        String namesrv = arguments.getString("namesrv");
        String group = arguments.getString("group") == null ? "interop_puller" : arguments.getString("group");
        return CONSUMERS.computeIfAbsent(namesrv + " " + group + " " + Security.key(arguments), ignored -> {
            DefaultMQPullConsumer consumer = new DefaultMQPullConsumer(group, Security.hook(arguments));
            consumer.setUseTLS(Security.usesTls(arguments));
            consumer.setNamesrvAddr(namesrv);
            consumer.setInstanceName("puller-" + System.nanoTime());
            try {
                consumer.start();
            } catch (Exception failure) {
                throw new IllegalStateException("pull consumer cannot start", failure);
            }
            return consumer;
        });
    }

    static void stopAll() {
        CONSUMERS.values().forEach(DefaultMQPullConsumer::shutdown);
        CONSUMERS.clear();
    }

    private static MessageQueue queue(JSONObject arguments) {
        return new MessageQueue(arguments.getString("topic"), arguments.getString("broker"), arguments.getIntValue("queue"));
    }
}
