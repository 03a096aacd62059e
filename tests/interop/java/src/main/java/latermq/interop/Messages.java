package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.List;
import java.util.Random;
import java.util.TreeMap;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageQueue;

/** Messages, send results and queues as JSON, and bodies to send. */
final class Messages {
    private static final int SHOWN_BODY_BYTES = 200;

    private Messages() {
    }

    /** A message numbered {@code number}: its body is {@code prefix-number}, padded to {@code size} if that is given. */
    static Message build(JSONObject arguments, int number) {
        byte[] body = (arguments.getString("prefix") == null ? "m" : arguments.getString("prefix")).concat("-" + number)
            .getBytes(StandardCharsets.UTF_8);
        int sizeBytes = arguments.getIntValue("size_bytes", 0);
        if (sizeBytes > 0) {
            byte[] padded = new byte[sizeBytes];
            if (arguments.getBooleanValue("incompressible")) {
                new Random(number).nextBytes(padded);
            }
            System.arraycopy(body, 0, padded, 0, Math.min(body.length, sizeBytes));
            body = padded;
        }
        Message message = new Message(arguments.getString("topic"), body);
        JSONArray tags = arguments.getJSONArray("tags");
        if (tags != null) {
            message.setTags(tags.getString(number % tags.size()));
        }
        if (arguments.getString("keys") != null) {
            message.setKeys(arguments.getString("keys").replace("%d", Integer.toString(number)));
        }
        JSONArray delayLevels = arguments.getJSONArray("delay_levels");
        if (delayLevels != null) {
            message.setDelayTimeLevel(delayLevels.getIntValue(number % delayLevels.size()));
        }
        JSONArray timers = arguments.getJSONArray("timers");
        if (timers != null) {
            Timing.set(message, timers.getJSONObject(number % timers.size()));
        }
        JSONObject properties = arguments.getJSONObject("properties");
        if (properties != null) {
            properties.forEach((name, value) ->
                message.putUserProperty(name, value.toString().replace("%d", Integer.toString(number))));
        }
        JSONObject reserved = arguments.getJSONObject("reserved_properties");
        if (reserved != null) {
            reserved.forEach((name, value) -> MessageAccessor.putProperty(message, name, value.toString()));
        }
        return message;
    }

    static JSONObject json(SendResult result) {
        JSONObject json = new JSONObject();
        json.put("status", result.getSendStatus().name());
        json.put("msg_id", result.getMsgId());
        json.put("offset_msg_id", result.getOffsetMsgId());
        json.put("queue", result.getMessageQueue().getQueueId());
        json.put("broker", result.getMessageQueue().getBrokerName());
        json.put("queue_offset", result.getQueueOffset());
        json.put("recall_handle", result.getRecallHandle());
        return json;
    }

    static JSONObject json(MessageExt message) {
        JSONObject json = new JSONObject();
        json.put("topic", message.getTopic());
        json.put("queue", message.getQueueId());
        json.put("queue_offset", message.getQueueOffset());
        json.put("commit_log_offset", message.getCommitLogOffset());
        json.put("msg_id", message.getMsgId());
        json.put("tags", message.getTags());
        json.put("keys", message.getKeys());
        json.put("properties", new TreeMap<>(message.getProperties()));
        json.put("born_ms", message.getBornTimestamp());
        json.put("stored_ms", message.getStoreTimestamp());
        json.put("seen_ms", System.currentTimeMillis());
        json.put("reconsumed", message.getReconsumeTimes());
        json.put("size_bytes", message.getBody().length);
        json.put("sha1", sha1(message.getBody()));
        if (message.getBody().length <= SHOWN_BODY_BYTES) {
            json.put("body", new String(message.getBody(), StandardCharsets.UTF_8));
        }
        return json;
    }

    static JSONArray json(List<MessageExt> messages) {
        JSONArray array = new JSONArray();
        messages.forEach(message -> array.add(json(message)));
        return array;
    }

    static JSONObject json(MessageQueue queue) {
        return JSONObject.of("topic", queue.getTopic(), "broker", queue.getBrokerName(), "queue", queue.getQueueId());
    }

    static String sha1(byte[] body) {
        try {
            StringBuilder text = new StringBuilder();
            for (byte b : MessageDigest.getInstance("SHA-1").digest(body)) {
                text.append(String.format("%02x", b));
            }
            return text.toString();
        } catch (java.security.NoSuchAlgorithmException impossible) {
            throw new IllegalStateException(impossible);
        }
    }
}
