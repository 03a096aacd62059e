package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.ArrayList;
import java.util.Collection;
import java.util.List;
import org.apache.rocketmq.client.consumer.DefaultLitePullConsumer;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/**
 * The lite pull consumer: subscribed, or with {@code assign} holding every queue of the topic and, as asked, moved to
 * the offsets in {@code seek} (queue id to offset) or to those of the time {@code seek_ms}.
 */
final class LitePulling {
    private static final long POLL_MS = 500;

    private LitePulling() {
    }

    static JSONObject pull(JSONObject arguments) throws Exception {
        DefaultLitePullConsumer consumer = new DefaultLitePullConsumer(arguments.getString("group"),
            Security.hook(arguments));
        consumer.setUseTLS(Security.usesTls(arguments));
        consumer.setNamesrvAddr(arguments.getString("namesrv"));
        consumer.setInstanceName("lite-" + System.nanoTime());
        consumer.setAutoCommit(false);
        String topic = arguments.getString("topic");
        boolean assign = arguments.getBooleanValue("assign");
        if (!assign) {
            consumer.subscribe(topic, arguments.getString("expression") == null ? "*" : arguments.getString("expression"));
        }
        consumer.start();
        try {
            if (assign) {
                assign(consumer, topic, arguments);
            }
            List<MessageExt> messages = poll(consumer, arguments);
            consumer.commit();
            return JSONObject.of("messages", Messages.json(messages), "committed", committed(consumer, topic));
        } finally {
            consumer.shutdown();
        }
    }

    private static void assign(DefaultLitePullConsumer consumer, String topic, JSONObject arguments) throws Exception {
        Collection<MessageQueue> queues = consumer.fetchMessageQueues(topic);
        consumer.assign(queues);
        // It begins to pull at once, and what such a pull brings after a seek is delivered in spite of the seek.
        while (!consumer.poll(POLL_MS).isEmpty()) {
            continue;
        }
        JSONObject seek = arguments.getJSONObject("seek");
        for (MessageQueue queue : queues) {
            if (seek != null && seek.containsKey(Integer.toString(queue.getQueueId()))) {
                consumer.seek(queue, seek.getLongValue(Integer.toString(queue.getQueueId())));
            } else if (arguments.containsKey("seek_ms")) {
                consumer.seek(queue, consumer.offsetForTimestamp(queue, arguments.getLongValue("seek_ms")));
            } else {
                consumer.seekToBegin(queue);
            }
        }
    }

    private static List<MessageExt> poll(DefaultLitePullConsumer consumer, JSONObject arguments) {
        int count = arguments.getIntValue("count", 1);
        long deadline = System.currentTimeMillis() + 1000L * arguments.getIntValue("timeout_s", 30);
        List<MessageExt> messages = new ArrayList<>();
        while (messages.size() < count && System.currentTimeMillis() < deadline) {
            messages.addAll(consumer.poll(POLL_MS));
        }
        // One more look, so that a message too many is seen.
        messages.addAll(consumer.poll(POLL_MS));
        if (messages.size() < count) {
            throw new IllegalStateException("only " + messages.size() + " of " + count + " messages came");
        }
        return messages;
    }

    private static JSONArray committed(DefaultLitePullConsumer consumer, String topic) throws Exception {
        JSONArray committed = new JSONArray();
        for (MessageQueue queue : consumer.fetchMessageQueues(topic)) {
            JSONObject entry = Messages.json(queue);
            entry.put("offset", consumer.committed(queue));
            committed.add(entry);
        }
        return committed;
    }
}
