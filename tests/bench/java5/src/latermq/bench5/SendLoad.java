package latermq.bench5;

import com.alibaba.fastjson2.JSONObject;
import java.time.Duration;
import java.util.Arrays;
import java.util.concurrent.Semaphore;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.producer.Producer;

/** Sends for some seconds, with a bounded number of messages in flight. */
final class SendLoad {
    private static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final int MOST = 10_000_000;

    private final JSONObject arguments;
    private final String topic;
    private final byte[] body;
    private final int inFlight;
    private final Failures failures = new Failures();

    SendLoad(JSONObject arguments) {
        this.arguments = arguments;
        topic = arguments.getString("topic");
        body = new byte[arguments.getIntValue("size")];
        Arrays.fill(body, (byte) 'x');
        inFlight = arguments.getIntValue("connections") * arguments.getIntValue("callers");
    }

    static ClientConfiguration configuration(JSONObject arguments) {
        return ClientConfiguration.newBuilder()
            .setEndpoints(arguments.getString("address"))
            .enableSsl(arguments.getBooleanValue("tls"))
            .setRequestTimeout(Duration.ofSeconds(10))
            .build();
    }

    JSONObject run() throws Exception {
        try (Producer producer = PROVIDER.newProducerBuilder()
            .setClientConfiguration(configuration(arguments)).setTopics(topic).build()) {
            return run(producer);
        }
    }

    private JSONObject run(Producer producer) throws InterruptedException {
        Semaphore room = new Semaphore(inFlight);
        long[] latenciesNs = new long[1 << 20];
        AtomicInteger sent = new AtomicInteger();
        long startedNs = System.nanoTime();
        long untilNs = startedNs + (long) (arguments.getDoubleValue("seconds") * 1e9);
        for (int i = 0; i < MOST && System.nanoTime() < untilNs; i++) {
            room.acquire();
            Message message = PROVIDER.newMessageBuilder().setTopic(topic).setBody(body).build();
            long sentNs = System.nanoTime();
            producer.sendAsync(message).whenComplete((receipt, failure) -> {
                if (failure == null) {
                    int place = sent.getAndIncrement();
                    if (place < latenciesNs.length) {
                        latenciesNs[place] = System.nanoTime() - sentNs;
                    }
                } else {
                    failures.add(failure);
                }
                room.release();
            });
        }
        room.acquire(inFlight);
        long tookNs = System.nanoTime() - startedNs;
        int measured = Math.min(sent.get(), latenciesNs.length);
        Arrays.sort(latenciesNs, 0, measured);
        JSONObject result = JSONObject.of("sent", sent.get(), "took_ns", tookNs);
        result.put("p50_ns", latenciesNs[(int) (0.5 * Math.max(0, measured - 1))]);
        result.put("p99_ns", latenciesNs[(int) (0.99 * Math.max(0, measured - 1))]);
        result.put("max_ns", latenciesNs[Math.max(0, measured - 1)]);
        failures.report(result);
        return result;
    }
}
