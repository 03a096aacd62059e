package latermq.bench;

import com.alibaba.fastjson2.JSONObject;
import java.util.Arrays;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Semaphore;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendCallback;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageQueue;

/** Sends {@code count} messages from {@code threads} threads, each waiting for its answer, or ahead of the answers. */
final class SendLoad {
    private static final Map<String, DefaultMQProducer> PRODUCERS = new ConcurrentHashMap<>();
    private static final int QUEUES = 8;
    private static final int TIMEOUT_MS = 10_000;
    private static final int LONGEST_ANSWER_S = 60;
    private static final long GOLDEN = 2_654_435_761L;

    private final DefaultMQProducer producer;
    private final String topic;
    private final byte[] body;
    private final int count;
    private final int threads;
    private final boolean waits;
    private final int inFlight;
    private final double perSecond;
    private final int delayLevel;
    private final long[] delaysMs;
    private final long dueAtMs;
    private final long dueFromMs;
    private final long dueOverMs;
    private final Semaphore room;
    private final long[] latenciesNs;
    private final AtomicInteger claimed = new AtomicInteger();
    private final AtomicInteger acknowledged = new AtomicInteger();
    private final AtomicInteger failed = new AtomicInteger();
    private final AtomicReference<Throwable> firstFailure = new AtomicReference<>();
    private long startedNs;

    SendLoad(JSONObject arguments) {
        producer = producer(arguments);
        topic = arguments.getString("topic");
        body = new byte[arguments.getIntValue("size")];
        Arrays.fill(body, (byte) 'x');
        count = arguments.getIntValue("count");
        threads = arguments.getIntValue("threads");
        waits = arguments.getString("mode").equals("sync");
        inFlight = arguments.getIntValue("in_flight", threads);
        perSecond = arguments.getDoubleValue("rate");
        delayLevel = arguments.getIntValue("delay_level", 0);
        delaysMs = arguments.containsKey("delays_ms")
            ? arguments.getJSONArray("delays_ms").stream().mapToLong(delay -> ((Number) delay).longValue()).toArray()
            : new long[0];
        dueAtMs = arguments.getLongValue("due_at_ms");
        dueFromMs = arguments.getLongValue("due_from_ms");
        dueOverMs = arguments.getLongValue("due_over_ms");
        room = new Semaphore(inFlight);
        latenciesNs = new long[count];
    }

    JSONObject run() throws InterruptedException {
        Thread[] senders = new Thread[threads];
        startedNs = System.nanoTime();
        for (int i = 0; i < threads; i++) {
            senders[i] = new Thread(waits ? this::sendWaiting : this::sendAhead, "load-" + i);
            senders[i].start();
        }
        for (Thread sender : senders) {
            sender.join();
        }
        if (!room.tryAcquire(inFlight, LONGEST_ANSWER_S, TimeUnit.SECONDS)) {
            throw new IllegalStateException(inFlight - room.availablePermits() + " sends were never answered");
        }
        return result(System.nanoTime() - startedNs);
    }

    private void sendWaiting() {
        for (int number = next(); number < count; number = next()) {
            long sentNs = System.nanoTime();
            try {
                producer.send(message(number));
                answered(sentNs);
            } catch (Exception failure) {
                failed(failure);
            }
        }
    }

    private void sendAhead() {
        for (int number = next(); number < count; number = next()) {
            room.acquireUninterruptibly();
            long sentNs = System.nanoTime();
            SendCallback callback = new SendCallback() {
                @Override
                public void onSuccess(SendResult result) {
                    answered(sentNs);
                    room.release();
                }

                @Override
                public void onException(Throwable failure) {
                    failed(failure);
                    room.release();
                }
            };
            try {
                producer.send(message(number), callback);
            } catch (Exception failure) {
                callback.onException(failure);
            }
        }
    }

    private Message message(int number) {
        Message message = new Message(topic, body);
        int level = delaysMs.length > 0 ? levelDueTogether() : delayLevel;
        if (level > 0) {
            message.setDelayTimeLevel(level);
        }
        if (dueFromMs > 0) {
            message.setDeliverTimeMs(dueFromMs + (long) (dueOverMs * place(number)));
        }
        return message;
    }

    /** From 0 to below 1: evenly spread, whatever the count, with neighbours far apart. */
    private static double place(int number) {
        return (number * GOLDEN & 0xFFFF_FFFFL) / (double) (1L << 32);
    }

    /** The shortest level that is due at {@code dueAtMs} or later; where none is long enough, the longest. */
    private int levelDueTogether() {
        long leftMs = dueAtMs - System.currentTimeMillis();
        int best = 0;
        for (int i = 0; i < delaysMs.length; i++) {
            boolean shorter = delaysMs[best] < leftMs ? delaysMs[i] > delaysMs[best] : delaysMs[i] < delaysMs[best];
            if (shorter && (delaysMs[i] >= leftMs || delaysMs[best] < leftMs)) {
                best = i;
            }
        }
        return best + 1;
    }

    /** How many messages a topic holds. */
    static JSONObject stored(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = producer(arguments);
        long stored = 0;
        for (MessageQueue queue : producer.fetchPublishMessageQueues(arguments.getString("topic"))) {
            stored += producer.maxOffset(queue);
        }
        return JSONObject.of("stored", stored);
    }

    /** The number of the next message, once it is time for it. */
    private int next() {
        int number = claimed.getAndIncrement();
        if (perSecond > 0 && number < count) {
            long dueNs = startedNs + (long) (number * 1e9 / perSecond);
            for (long early = dueNs - System.nanoTime(); early > 0; early = dueNs - System.nanoTime()) {
                LockSupport.parkNanos(early);
            }
        }
        return number;
    }

    private void answered(long sentNs) {
        latenciesNs[acknowledged.getAndIncrement()] = System.nanoTime() - sentNs;
    }

    private void failed(Throwable failure) {
        failed.incrementAndGet();
        firstFailure.compareAndSet(null, failure);
    }

    private JSONObject result(long tookNs) {
        int answers = acknowledged.get();
        long[] sortedNs = Arrays.copyOf(latenciesNs, answers);
        Arrays.sort(sortedNs);
        JSONObject result = JSONObject.of("acknowledged", answers, "failed", failed.get(), "took_ns", tookNs);
        result.put("first_failure", firstFailure.get() == null ? null : String.valueOf(firstFailure.get()));
        result.put("p50_ns", atRank(sortedNs, 0.5));
        result.put("p99_ns", atRank(sortedNs, 0.99));
        result.put("max_ns", atRank(sortedNs, 1));
        return result;
    }

    private static long atRank(long[] sorted, double part) {
        return sorted.length == 0 ? 0 : sorted[Math.max(0, (int) Math.ceil(part * sorted.length) - 1)];
    }

    private static DefaultMQProducer producer(JSONObject arguments) {
        return PRODUCERS.computeIfAbsent(Access.key(arguments), ignored -> {
            DefaultMQProducer producer = new DefaultMQProducer("bench_producer", Access.hook(arguments));
            producer.setNamesrvAddr(arguments.getString("namesrv"));
            producer.setUseTLS(Access.usesTls(arguments));
            // Clients of one instance name share one connection to the name server of the first.
            producer.setInstanceName("bench-" + System.nanoTime());
            producer.setSendMsgTimeout(TIMEOUT_MS);
            // For topics that the first message makes.
            producer.setDefaultTopicQueueNums(QUEUES);
            try {
                producer.start();
            } catch (Exception failure) {
                throw new IllegalStateException("the producer cannot start", failure);
            }
            return producer;
        });
    }

    static void stopAll() {
        PRODUCERS.values().forEach(DefaultMQProducer::shutdown);
        PRODUCERS.clear();
    }
}
