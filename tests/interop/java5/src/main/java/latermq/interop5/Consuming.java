package latermq.interop5;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.atomic.AtomicInteger;
import org.apache.rocketmq.client.apis.consumer.ConsumeResult;
import org.apache.rocketmq.client.apis.consumer.FilterExpression;
import org.apache.rocketmq.client.apis.consumer.FilterExpressionType;
import org.apache.rocketmq.client.apis.consumer.SimpleConsumer;
import org.apache.rocketmq.client.apis.message.MessageView;

/** Simple consumers, whose messages are kept by number so that they can be acked later, and push consumers. */
final class Consuming {
    private static final Map<Integer, MessageView> VIEWS = new ConcurrentHashMap<>();
    private static final AtomicInteger NEXT_VIEW = new AtomicInteger();

    private Consuming() {
    }

    static JSONObject startSimple(JSONObject arguments) throws Exception {
        return Clients.add(arguments.getString("name"), Clients.PROVIDER.newSimpleConsumerBuilder()
            .setClientConfiguration(Clients.configuration(arguments))
            .setConsumerGroup(arguments.getString("group"))
            .setAwaitDuration(Duration.ofSeconds(arguments.getLongValue("await_s")))
            .setSubscriptionExpressions(subscription(arguments))
            .build());
    }

    private static Map<String, FilterExpression> subscription(JSONObject arguments) {
        FilterExpressionType type = arguments.containsKey("sql") ? FilterExpressionType.SQL92 : FilterExpressionType.TAG;
        String expression = arguments.containsKey("sql") ? arguments.getString("sql") : arguments.getString("tags");
        return Map.of(
            arguments.getString("topic"), new FilterExpression(expression == null ? "*" : expression, type));
    }

    static JSONObject receive(JSONObject arguments) throws Exception {
        SimpleConsumer consumer = Clients.get(arguments.getString("consumer"), SimpleConsumer.class);
        JSONArray messages = new JSONArray();
        for (MessageView view : consumer.receive(
            arguments.getIntValue("count"), Duration.ofSeconds(arguments.getLongValue("invisible_s")))) {
            int number = NEXT_VIEW.getAndIncrement();
            VIEWS.put(number, view);
            messages.add(describe(view).fluentPut("view", number));
        }
        return JSONObject.of("messages", messages);
    }

    static JSONObject ack(JSONObject arguments) throws Exception {
        Clients.get(arguments.getString("consumer"), SimpleConsumer.class)
            .ack(VIEWS.get(arguments.getIntValue("view")));
        return new JSONObject();
    }

    static JSONObject change(JSONObject arguments) throws Exception {
        Clients.get(arguments.getString("consumer"), SimpleConsumer.class).changeInvisibleDuration(
            VIEWS.get(arguments.getIntValue("view")), Duration.ofSeconds(arguments.getLongValue("invisible_s")));
        return new JSONObject();
    }

    static JSONObject startPush(JSONObject arguments) throws Exception {
        String name = arguments.getString("name");
        long busyMs = arguments.getLongValue("busy_ms");
        int failures = arguments.getIntValue("failures");
        return Clients.add(name, Clients.PROVIDER.newPushConsumerBuilder()
            .setClientConfiguration(Clients.configuration(arguments))
            .setConsumerGroup(arguments.getString("group"))
            .setSubscriptionExpressions(subscription(arguments))
            .setMessageListener(view -> {
                Out.line(describe(view).fluentPut("event", "message").fluentPut("consumer", name));
                try {
                    Thread.sleep(busyMs);
                } catch (InterruptedException stopped) {
                    return ConsumeResult.FAILURE;
                }
                return view.getDeliveryAttempt() <= failures ? ConsumeResult.FAILURE : ConsumeResult.SUCCESS;
            })
            .build());
    }

    static JSONObject describe(MessageView view) {
        return new JSONObject()
            .fluentPut("received_ms", System.currentTimeMillis())
            .fluentPut("message_id", view.getMessageId().toString())
            .fluentPut("topic", view.getTopic())
            .fluentPut("body", StandardCharsets.UTF_8.decode(view.getBody()).toString())
            .fluentPut("tag", view.getTag().orElse(null))
            .fluentPut("keys", view.getKeys())
            .fluentPut("message_group", view.getMessageGroup().orElse(null))
            .fluentPut("properties", view.getProperties())
            .fluentPut("deliver_at_ms", view.getDeliveryTimestamp().orElse(null))
            .fluentPut("born_ms", view.getBornTimestamp())
            .fluentPut("attempt", view.getDeliveryAttempt());
    }
}
