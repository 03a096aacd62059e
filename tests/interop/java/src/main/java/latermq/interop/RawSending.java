package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.impl.CommunicationMode;
import org.apache.rocketmq.client.impl.producer.DefaultMQProducerImpl;
import org.apache.rocketmq.client.producer.DefaultMQProducer;
import org.apache.rocketmq.client.producer.SendResult;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageClientIDSetter;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;

/** Sends one message past the producer's own checks, straight to a broker, so that the broker's checks answer. */
final class RawSending {
    private static final int TIMEOUT_MS = 10_000;

    private RawSending() {
    }

    static JSONObject send(JSONObject arguments) throws Exception {
        DefaultMQProducer producer = Sending.producer(arguments);
        DefaultMQProducerImpl inside = producer.getDefaultMQProducerImpl();
        Message message = Messages.build(arguments, 0);
        MessageClientIDSetter.setUniqID(message);

        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup(producer.getProducerGroup());
        header.setTopic(message.getTopic());
        header.setDefaultTopic(arguments.getString("default_topic") == null ? "TBW102" : arguments.getString("default_topic"));
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(arguments.getIntValue("queue", 0));
        header.setSysFlag(arguments.getIntValue("sysflag", 0));
        header.setBornTimestamp(System.currentTimeMillis());
        header.setFlag(0);
        header.setProperties(MessageDecoder.messageProperties2String(message.getProperties()));
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(false);
        header.setBrokerName(arguments.getString("broker"));
        SendResult result = inside.getMqClientFactory().getMQClientAPIImpl().sendMessage(
            arguments.getString("address"), arguments.getString("broker"), message, header, TIMEOUT_MS,
            CommunicationMode.SYNC, null, inside);
        return Messages.json(result);
    }
}
