package latermq.bench5;

import com.alibaba.fastjson2.JSONObject;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Drains a topic with a simple consumer that acknowledges every message. */
final class ReceiveLoad {
    private final JSONObject arguments;
    private final int count;
    private final long untilNs;
    private final Failures failures = new Failures();
    private final AtomicInteger received = new AtomicInteger();
    private final AtomicInteger acked = new AtomicInteger();
    private final AtomicInteger calls = new AtomicInteger();
    private final AtomicLong tookNs = new AtomicLong();
    private final Set<String> ids = ConcurrentHashMap.newKeySet();

    ReceiveLoad(JSONObject arguments) {
        this.arguments = arguments;
        count = arguments.getIntValue("count");
        untilNs = System.nanoTime() + (long) (arguments.getDoubleValue("timeout_s") * 1e9);
    }

    JSONObject run() throws Exception {
        String topic = arguments.getString("topic");
        try (SimpleConsumer consumer = ClientServiceProvider.loadService().newSimpleConsumerBuilder()
            .setClientConfiguration(SendLoad.configuration(arguments))
            .setConsumerGroup(arguments.getString("group"))
            .setAwaitDuration(Duration.ofMillis((long) (arguments.getDoubleValue("poll_s") * 1e3)))
            .setSubscriptionExpressions(Map.of(topic, FilterExpression.SUB_ALL))
            .build()) {
            long startedNs = System.nanoTime();
            Thread[] receivers = new Thread[arguments.getIntValue("connections") * arguments.getIntValue("callers")];
            for (int i = 0; i < receivers.length; i++) {
                receivers[i] = new Thread(() -> receive(consumer, startedNs), "load-" + i);
                receivers[i].start();
            }
            for (Thread receiver : receivers) {
                receiver.join();
            }
        }
        JSONObject result = JSONObject.of("received", received.get(), "acked", acked.get(), "calls", calls.get());
        result.put("repeated", received.get() - ids.size());
        result.put("took_ns", tookNs.get());
        failures.report(result);
        return result;
    }

    private void receive(SimpleConsumer consumer, long startedNs) {
        Duration invisible = Duration.ofMillis((long) (arguments.getDoubleValue("invisible_s") * 1e3));
        while (acked.get() < count && System.nanoTime() < untilNs) {
            try {
                List<MessageView> batch = consumer.receive(arguments.getIntValue("batch"), invisible);
                if (batch.isEmpty()) {
                    continue;
                }
                calls.incrementAndGet();
                received.addAndGet(batch.size());
                batch.forEach(message -> ids.add(message.getMessageId().toString()));
                CompletableFuture<?>[] acks = batch.stream().map(message -> acknowledge(consumer, message))
                    .toArray(CompletableFuture[]::new);
                CompletableFuture.allOf(acks).join();
                tookNs.accumulateAndGet(System.nanoTime() - startedNs, Math::max);
            } catch (Exception failure) {
                failures.add(failure);
            }
        }
    }

    private CompletableFuture<Void> acknowledge(SimpleConsumer consumer, MessageView message) {
        return consumer.ackAsync(message).handle((nothing, failure) -> {
            if (failure == null) {
                acked.incrementAndGet();
            } else {
                failures.add(failure);
            }
            return null;
        });
    }
}
