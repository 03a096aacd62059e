package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;

/**
 * Sends {@code count} messages in one of the modes sync, async, oneway, batch and selector (message n goes to queue n
 * modulo the queues of the topic).
 */
final class Sending {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final int TIMEOUT_MS = 10_000;

    private Sending() {
    }

    static JSONObject send(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        int first = arguments.getIntValue("first", 0);
        int count = arguments.getIntValue("count", 1);
        List<Message> messages = new ArrayList<>(count);
        JSONArray sha1 = new JSONArray();
        for (int number = first; number < first + count; number++) {
            Message message = Messages.build(arguments, number);
            messages.add(message);
            sha1.add(Messages.sha1(message.getBody()));
        }
        String mode = arguments.getString("mode") == null ? "sync" : arguments.getString("mode");
        JSONArray results = new JSONArray();
        switch (mode) {
            case "sync":
                for (Message message : messages) {
                    results.add(Messages.json(producer.send(message)));
                }
                break;
            case "async":
                results = sendAsync(producer, messages);
                break;
            case "oneway":
                for (Message message : messages) {
                    producer.sendOneway(message);
                }
                break;
            case "batch":
                results.add(Messages.json(producer.send(messages)));
                break;
            case "selector":
                for (int i = 0; i < count; i++) {
                    results.add(Messages.json(producer.send(messages.get(i),
                        (queues, message, number) -> queues.get((Integer) number % queues.size()), first + i)));
                }
                break;
            default:
                throw new IllegalArgumentException("no mode " + mode);
        }
        return JSONObject.of("results", results, "sha1", sha1);
    }

    private static JSONArray sendAsync(DefaultMQProducer producer, List<Message> messages) throws Exception {
        SendResult[] sent = new SendResult[messages.size()];
        Throwable[] failures = new Throwable[messages.size()];
        CountDownLatch open = new CountDownLatch(messages.size());
        for (int i = 0; i < sent.length; i++) {
            final int number = i;
            producer.send(messages.get(i), new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    sent[number] = result;
                    open.countDown();
                }

                @Override
                public void onException(Throwable failure) {
                    failures[number] = failure;
                    open.countDown();
                }
            });
        }
        if (!open.await(2L * TIMEOUT_MS, TimeUnit.MILLISECONDS)) {
            throw new IllegalStateException(open.getCount() + " of " + sent.length + " sends were never answered");
        }
        JSONArray results = new JSONArray();
        for (int i = 0; i < sent.length; i++) {
            if (failures[i] != null) {
                throw new IllegalStateException("message " + i + " failed: " + failures[i], failures[i]);
            }
            results.add(Messages.json(sent[i]));
        }
        return results;
    }

    static DefaultMQProducer producer(JSONObject arguments) {
        String namesrv = arguments.getString("namesrv");
        String group = arguments.getString("group") == null ? "interop_producer" : arguments.getString("group");
        boolean large = arguments.getBooleanValue("unlimited");
        return PRODUCERS.computeIfAbsent(namesrv + " " + group + " " + large + " " + Security.key(arguments), ignored -> {
            DefaultMQProducer producer = new DefaultMQProducer(group, Security.hook(arguments));
            producer.setUseTLS(Security.usesTls(arguments));
            producer.setNamesrvAddr(namesrv);
            producer.setInstanceName("producer-" + PRODUCERS.size() + "-" + System.nanoTime());
            producer.setSendMsgTimeout(TIMEOUT_MS);
            if (large) {
                producer.setMaxMessageSize(Integer.MAX_VALUE);
                producer.setRetryTimesWhenSendFailed(0);
            }
            try {
                producer.start();
            } catch (Exception failure) {
                throw new IllegalStateException("producer cannot start", failure);
            }
            return producer;
        });
    }

    static JSONObject stop(JSONObject arguments) {
        DefaultMQProducer producer = producer(arguments);
        producer.shutdown();
        PRODUCERS.values().remove(producer);
        return new JSONObject();
    }

    static void stopAll() {
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        PRODUCERS.clear();
    }
}
