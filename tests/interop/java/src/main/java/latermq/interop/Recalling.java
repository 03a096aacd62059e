package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.common.producer.RecallMessageHandle;
import org.apache.rocketmq.remoting.protocol.header.RecallMessageRequestHeader;

/** Recalls messages that wait, and takes handles apart and puts them together with Apache's own class. */
final class Recalling {
    private static final int TIMEOUT_MS = 10_000;

    private Recalling() {
    }

    static JSONObject recall(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = Sending.producer(arguments);
        String id = producer.recallMessage(arguments.getString("topic"), arguments.getString("handle"));
        return JSONObject.of("msg_id", id);
    }

    /** Past the producer's own checks, straight to the broker at {@code address}. */
    static JSONObject recallRaw(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = Sending.producer(arguments);
        RecallMessageRequestHeader header = new RecallMessageRequestHeader();
        header.setProducerGroup(producer.getProducerGroup());
        header.setTopic(arguments.getString("topic"));
        header.setRecallHandle(arguments.getString("handle"));
        header.setBrokerName(arguments.getString("broker"));
        String id = producer.getDefaultMQProducerImpl().getMqClientFactory().getMQClientAPIImpl()
            .recallMessage(arguments.getString("address"), header, TIMEOUT_MS);
        return JSONObject.of("msg_id", id);
    }

    static JSONObject readHandle(JSONObject arguments) throws Exception {
        RecallMessageHandle.HandleV1 handle =
            (RecallMessageHandle.HandleV1) RecallMessageHandle.decodeHandle(arguments.getString("handle"));
        JSONObject json = new JSONObject();
        json.put("topic", handle.getTopic());
        json.put("broker", handle.getBrokerName());
        json.put("timestamp", handle.getTimestampStr());
        json.put("id", handle.getMessageId());
        return json;
    }

    static JSONObject makeHandle(JSONObject arguments) {
        return JSONObject.of("handle", RecallMessageHandle.HandleV1.buildHandle(arguments.getString("topic"),
            arguments.getString("broker"), arguments.getString("timestamp"), arguments.getString("id")));
    }
}
