package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.MessageSelector;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.ConsumeOrderlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.client.consumer.listener.MessageListenerOrderly;
import org.apache.rocketmq.client.impl.consumer.RebalanceImpl;
import org.apache.rocketmq.common.UtilAll;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;

/** Push consumers. Each message and each new assignment of queues is an event on standard output. */
final class PushConsuming {
    private static final Map<String, DefaultMQPushConsumer> CONSUMERS = new ConcurrentHashMap<>();
    private static final int HEARTBEAT_MS = 2_000;
    private static final int ROUTE_MS = 2_000;
    private static final int OFFSETS_MS = 1_000;

    private PushConsuming() {
    }

    /** Consumes until {@code count} different messages were seen; fails if that takes longer than {@code timeout_s}. */
    static JSONObject consume(JSONObject arguments) throws Exception {
        int count = arguments.getIntValue("count", 1);
        Set<String> seen = ConcurrentHashMap.newKeySet();
        CountDownLatch open = new CountDownLatch(count);
        DefaultMQPushConsumer consumer = begin(arguments, message -> {
            if (seen.add(message.getMsgId())) {
                open.countDown();
            }
        });
        try {
            if (!open.await(arguments.getIntValue("timeout_s", 30), TimeUnit.SECONDS)) {
                throw new IllegalStateException("only " + seen.size() + " of " + count + " messages came");
            }
        } finally {
            consumer.shutdown();
        }
        return JSONObject.of("consumed", seen.size());
    }

    static JSONObject start(JSONObject arguments) throws Exception {
        DefaultMQPushConsumer consumer = begin(arguments, message -> { });
        CONSUMERS.put(arguments.getString("name"), consumer);
        return JSONObject.of("client_id", consumer.buildMQClientId());
    }

    static JSONObject assigned(JSONObject arguments) {
        RebalanceImpl rebalance = named(arguments).getDefaultMQPushConsumerImpl().getRebalanceImpl();
        return JSONObject.of("queues", queues(rebalance.getProcessQueueTable().keySet()),
            "pop_queues", queues(rebalance.getPopProcessQueueTable().keySet()));
    }

    static JSONObject stop(JSONObject arguments) {
        named(arguments).shutdown();
        CONSUMERS.remove(arguments.getString("name"));
        return new JSONObject();
    }

    static void stopAll() {
        CONSUMERS.values().forEach(DefaultMQPushConsumer::shutdown);
        CONSUMERS.clear();
    }

    private static DefaultMQPushConsumer named(JSONObject arguments) {
        DefaultMQPushConsumer consumer = CONSUMERS.get(arguments.getString("name"));
        if (consumer == null) {
            throw new IllegalArgumentException("no consumer " + arguments.getString("name"));
        }
        return consumer;
    }

    private static DefaultMQPushConsumer begin(JSONObject arguments, Consumer<MessageExt> seen) throws Exception {
        String name = arguments.getString("name") == null ? "consumer" : arguments.getString("name");
        String topic = arguments.getString("topic");
        DefaultMQPushConsumer consumer = new DefaultMQPushConsumer(arguments.getString("group"),
            Security.hook(arguments));
        consumer.setUseTLS(Security.usesTls(arguments));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName(name + "-" + System.nanoTime());
        // At start two threads of the client may want to send a heartbeat at once; the loser, which knows the newer
        // version of the subscription, gives up, and the broker refuses the pulls until the next one.
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        // A retry topic made after the start is found at the next look at the name server.
        consumer.setPollNameServerInterval(ROUTE_MS);
        consumer.setPersistConsumerOffsetInterval(OFFSETS_MS);
        consumer.setConsumeThreadMin(arguments.getIntValue("threads", 4));
        consumer.setConsumeThreadMax(arguments.getIntValue("threads", 4));
        if (arguments.getBooleanValue("server_rebalance")) {
            consumer.setClientRebalance(false);
        }
        consumer.setPopInvisibleTime(arguments.getLongValue("invisible_ms", consumer.getPopInvisibleTime()));
        if (arguments.getBooleanValue("broadcasting")) {
            consumer.setMessageModel(MessageModel.BROADCASTING);
        }
        String from = arguments.getString("from") == null ? "FIRST_OFFSET" : arguments.getString("from");
        consumer.setConsumeFromWhere(ConsumeFromWhere.valueOf("CONSUME_FROM_" + from));
        if (arguments.containsKey("from_ms")) {
            consumer.setConsumeTimestamp(UtilAll.timeMillisToHumanString3(arguments.getLongValue("from_ms")));
        }
        if (arguments.getString("sql") != null) {
            consumer.subscribe(topic, MessageSelector.bySql(arguments.getString("sql")));
        } else {
            consumer.subscribe(topic, arguments.getString("expression") == null ? "*" : arguments.getString("expression"));
        }
        consumer.setMessageQueueListener((changed, all, mine) -> Out.line(
            JSONObject.of("event", "assigned", "consumer", name, "topic", changed, "queues", queues(mine))));

        int workMs = arguments.getIntValue("work_ms", 0);
        int failures = arguments.getIntValue("failures", 0);
        int delayLevel = arguments.getIntValue("delay_level", 0);
        boolean forgetOffset = arguments.getBooleanValue("forget_offset");
        if (arguments.containsKey("max_reconsume_times")) {
            consumer.setMaxReconsumeTimes(arguments.getIntValue("max_reconsume_times"));
        }
        if (arguments.containsKey("suspend_ms")) {
            consumer.setSuspendCurrentQueueTimeMillis(arguments.getLongValue("suspend_ms"));
        }
        if (arguments.getBooleanValue("orderly")) {
            consumer.registerMessageListener((MessageListenerOrderly) (messages, context) -> {
                handle(name, messages, workMs, seen);
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeOrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT : ConsumeOrderlyStatus.SUCCESS;
            });
        } else {
            consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
                handle(name, messages, workMs, seen);
                context.setDelayLevelWhenNextConsume(delayLevel);
                if (forgetOffset) {
                    messages.forEach(message -> message.setCommitLogOffset(Long.MAX_VALUE / 2));
                }
                return messages.get(0).getReconsumeTimes() < failures
                    ? ConsumeConcurrentlyStatus.RECONSUME_LATER : ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
            });
        }
        consumer.start();
        Out.line(JSONObject.of("event", "started", "consumer", name));
        return consumer;
    }

    private static void handle(String name, List<MessageExt> messages, int workMs, Consumer<MessageExt> seen) {
        for (MessageExt message : messages) {
            JSONObject event = Messages.json(message);
            event.put("event", "message");
            event.put("consumer", name);
            if (workMs > 0) {
                try {
                    Thread.sleep(workMs);
                } catch (InterruptedException stopped) {
                    Thread.currentThread().interrupt();
                }
            }
            event.put("done_ms", System.currentTimeMillis());
            Out.line(event);
            seen.accept(message);
        }
    }

    private static JSONArray queues(Set<MessageQueue> queues) {
        JSONArray array = new JSONArray();
        queues.forEach(queue -> array.add(Messages.json(queue)));
        return array;
    }
}
