package latermq.interop5;

import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.apis.message.Message;
import org.apache.rocketmq.client.apis.message.MessageBuilder;
import org.apache.rocketmq.client.apis.producer.Producer;
import org.apache.rocketmq.client.apis.producer.ProducerBuilder;
import org.apache.rocketmq.client.apis.producer.SendReceipt;
import org.apache.rocketmq.client.apis.producer.Transaction;
import org.apache.rocketmq.client.apis.producer.TransactionResolution;

/** Sending of all kinds of messages, and transactions. */
final class Producing {
    private static final Map<String, Transaction> TRANSACTIONS = new ConcurrentHashMap<>();

    private Producing() {
    }

    static JSONObject start(JSONObject arguments) throws Exception {
        String name = arguments.getString("name");
        ProducerBuilder builder = Clients.PROVIDER.newProducerBuilder()
            .setClientConfiguration(Clients.configuration(arguments))
            .setTopics(arguments.getJSONArray("topics").toArray(String.class));
        String resolution = arguments.getString("checked_as");
        if (resolution != null) {
            builder.setTransactionChecker(view -> {
                JSONObject event = Consuming.describe(view);
                event.put("event", "check");
                event.put("producer", name);
                Out.line(event);
                return TransactionResolution.valueOf(resolution.toUpperCase());
            });
        }
        return Clients.add(name, builder.build());
    }

    static JSONObject send(JSONObject arguments) throws Exception {
        Producer producer = Clients.get(arguments.getString("producer"), Producer.class);
        String name = arguments.getString("transaction");
        SendReceipt receipt;
        if (name == null) {
            receipt = producer.send(message(arguments));
        } else {
            Transaction transaction = producer.beginTransaction();
            receipt = producer.send(message(arguments), transaction);
            TRANSACTIONS.put(name, transaction);
        }
        return JSONObject.of(
            "message_id", receipt.getMessageId().toString(), "recall_handle", receipt.getRecallHandle());
    }

    private static Message message(JSONObject arguments) {
        MessageBuilder builder = Clients.PROVIDER.newMessageBuilder()
            .setTopic(arguments.getString("topic"))
            .setBody(arguments.getString("body").getBytes(StandardCharsets.UTF_8));
        if (arguments.containsKey("tag")) {
            builder.setTag(arguments.getString("tag"));
        }
        if (arguments.containsKey("keys")) {
            builder.setKeys(arguments.getJSONArray("keys").toArray(String.class));
        }
        if (arguments.containsKey("message_group")) {
            builder.setMessageGroup(arguments.getString("message_group"));
        }
        if (arguments.containsKey("deliver_at_ms")) {
            builder.setDeliveryTimestamp(arguments.getLongValue("deliver_at_ms"));
        }
        if (arguments.containsKey("properties")) {
            arguments.getJSONObject("properties").forEach((key, value) -> builder.addProperty(key, (String) value));
        }
        return builder.build();
    }

    static JSONObject endTransaction(JSONObject arguments) throws Exception {
        Transaction transaction = TRANSACTIONS.get(arguments.getString("transaction"));
        if (arguments.getString("resolution").equals("commit")) {
            transaction.commit();
        } else {
            transaction.rollback();
        }
        return new JSONObject();
    }

    static JSONObject recall(JSONObject arguments) throws Exception {
        Producer producer = Clients.get(arguments.getString("producer"), Producer.class);
        return JSONObject.of("message_id", String.valueOf(
            producer.recallMessage(arguments.getString("topic"), arguments.getString("handle")).getMessageId()));
    }
}
