package latermq.bench;

import com.alibaba.fastjson2.JSONObject;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.consumer.DefaultMQPushConsumer;
import org.apache.rocketmq.client.consumer.listener.ConsumeConcurrentlyStatus;
import org.apache.rocketmq.client.consumer.listener.MessageListenerConcurrently;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;

/** Drains a topic from its beginning with a push consumer; the time runs from the first message to the last. */
final class ConsumeLoad {
    private static final int BATCH = 32;
    private static final int HEARTBEAT_MS = 2_000;

    private ConsumeLoad() {
    }

    static JSONObject run(JSONObject arguments) throws Exception {
        int count = arguments.getIntValue("count");
        AtomicInteger seen = new AtomicInteger();
        AtomicLong firstNs = new AtomicLong();
        AtomicLong lastNs = new AtomicLong();
        CountDownLatch drained = new CountDownLatch(1);
        DefaultMQPushConsumer consumer =
            new DefaultMQPushConsumer(arguments.getString("group"), Access.hook(arguments));
        consumer.setUseTLS(Access.usesTls(arguments));
        // Where the group pops from the topic, the broker says so.
        consumer.setClientRebalance(!arguments.getBooleanValue("pops"));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName("bench-" + System.nanoTime());
        // The first heartbeat may miss the subscription; without it the broker refuses pulls until the next one.
        consumer.setHeartbeatBrokerInterval(HEARTBEAT_MS);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET);
        consumer.setConsumeThreadMin(arguments.getIntValue("threads"));
        consumer.setConsumeThreadMax(arguments.getIntValue("threads"));
        consumer.setPullBatchSize(BATCH);
        consumer.setConsumeMessageBatchMaxSize(BATCH);
        consumer.subscribe(arguments.getString("topic"), "*");
        consumer.registerMessageListener((MessageListenerConcurrently) (messages, context) -> {
            long nowNs = System.nanoTime();
            firstNs.compareAndSet(0, nowNs);
            int total = seen.addAndGet(messages.size());
            if (total >= count && total - messages.size() < count) {
                lastNs.set(System.nanoTime());
                drained.countDown();
            }
            return ConsumeConcurrentlyStatus.CONSUME_SUCCESS;
        });
        consumer.start();
        try {
            if (!drained.await(arguments.getIntValue("timeout_s"), TimeUnit.SECONDS)) {
                throw new IllegalStateException("only " + seen.get() + " of " + count + " messages came");
            }
        } finally {
            consumer.shutdown();
        }
        return JSONObject.of("consumed", seen.get(), "took_ns", lastNs.get() - firstNs.get());
    }
}
