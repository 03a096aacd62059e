/** Remoting frames as Apache's network layer puts them on the wire, in both header encodings. */
package latermq.golden;

import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Set;
import java.util.TreeMap;
import org.apache.rocketmq.common.MQVersion;
import org.apache.rocketmq.common.consumer.ConsumeFromWhere;
import org.apache.rocketmq.remoting.protocol.LanguageCode;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.SerializeType;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.header.PullMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.PullMessageResponseHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.SendMessageRequestHeaderV2;
import org.apache.rocketmq.remoting.protocol.header.SendMessageResponseHeader;
import org.apache.rocketmq.remoting.protocol.header.UpdateConsumerOffsetRequestHeader;
import org.apache.rocketmq.remoting.protocol.header.namesrv.GetRouteInfoRequestHeader;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumeType;
import org.apache.rocketmq.remoting.protocol.heartbeat.ConsumerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.HeartbeatData;
import org.apache.rocketmq.remoting.protocol.heartbeat.MessageModel;
import org.apache.rocketmq.remoting.protocol.heartbeat.ProducerData;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

final class FrameGolden {
    private interface Maker {
        RemotingCommand make() throws Exception;
    }

    private final List<Object> frames = new ArrayList<>();
    private int opaque = 100;

    static void write(Output out, Path scratch) throws Exception {
        System.setProperty(RemotingCommand.REMOTING_VERSION_KEY, Integer.toString(MQVersion.CURRENT_VERSION));
        FrameGolden golden = new FrameGolden();
        golden.addAll();
        out.json("frames.json", golden.frames);
    }

    private void addAll() throws Exception {
        add("send", () -> body(RemotingCommand.createRequestCommand(RequestCode.SEND_MESSAGE_V2, send(false)), "hello"));
        add("send batch", () -> {
            RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.SEND_BATCH_MESSAGE, send(true));
            command.setBody(CommitLogGolden.batchBody());
            return command;
        });
        add("send answer", FrameGolden::sendAnswer);
        add("pull", () -> RemotingCommand.createRequestCommand(RequestCode.PULL_MESSAGE, pull()));
        add("pull answer", FrameGolden::pullAnswer);
        add("route", () -> {
            GetRouteInfoRequestHeader header = new GetRouteInfoRequestHeader();
            header.setTopic("TopicGolden");
            return RemotingCommand.createRequestCommand(RequestCode.GET_ROUTEINFO_BY_TOPIC, header);
        });
        add("route answer", FrameGolden::routeAnswer);
        add("route answer, no such topic", () -> RemotingCommand.createResponseCommand(ResponseCode.TOPIC_NOT_EXIST,
            "No topic route info in name server for the topic: TopicGolden"));
        add("heartbeat", FrameGolden::heartbeat);
        add("one-way offset commit", FrameGolden::offsetCommit);
        add("unicode remark and fields", FrameGolden::unicode);
        add("empty field value", () -> {
            RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.GET_CONSUMER_LIST_BY_GROUP, null);
            command.addExtField("consumerGroup", "");
            return command;
        });
        add("nothing but a code", () -> RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null));
    }

    /** Each encoding gets a command of its own: encoding one changes it. */
    private void add(String name, Maker maker) throws Exception {
        for (SerializeType type : SerializeType.values()) {
            RemotingCommand command = maker.make();
            command.setOpaque(opaque);
            command.setSerializeTypeCurrentRPC(type);
            ByteBuf buffer = Unpooled.buffer();
            command.fastEncodeHeader(buffer);
            if (command.getBody() != null) {
                buffer.writeBytes(command.getBody());
            }
            byte[] frame = new byte[buffer.readableBytes()];
            buffer.getBytes(0, frame);
            RemotingCommand read = RemotingCommand.decode(Unpooled.wrappedBuffer(frame, 4, frame.length - 4));
            frames.add(Output.map("name", name, "serialize_type", type.name(), "code", read.getCode(),
                "language", read.getLanguage().name(), "version", read.getVersion(), "opaque", read.getOpaque(),
                "flag", read.getFlag(), "remark", read.getRemark(),
                "ext_fields", read.getExtFields() == null ? null : new TreeMap<>(read.getExtFields()),
                "body_hex", Output.hex(command.getBody() == null ? new byte[0] : command.getBody()),
                "frame_hex", Output.hex(frame)));
        }
        opaque++;
    }

    private static SendMessageRequestHeaderV2 send(boolean batch) {
        SendMessageRequestHeader header = new SendMessageRequestHeader();
        header.setProducerGroup("golden-producers");
        header.setTopic("TopicGolden");
        header.setDefaultTopic("TBW102");
        header.setDefaultTopicQueueNums(4);
        header.setQueueId(3);
        header.setSysFlag(0);
        header.setBornTimestamp(FixedClockStore.START_MS);
        header.setFlag(0);
        header.setProperties("UNIQ_KEY\u0001C0A8010A04D22A139A5518B4AAC20000\u0002WAIT\u0001true\u0002TAGS\u0001标签\u0002");
        header.setReconsumeTimes(0);
        header.setUnitMode(false);
        header.setBatch(batch);
        header.setBrokerName("broker-a");
        return SendMessageRequestHeaderV2.createSendMessageRequestHeaderV2(header);
    }

    private static RemotingCommand sendAnswer() {
        RemotingCommand command = RemotingCommand.createResponseCommand(SendMessageResponseHeader.class);
        SendMessageResponseHeader header = (SendMessageResponseHeader) command.readCustomHeader();
        header.setMsgId("0A00000100002A9F0000000000001267");
        header.setQueueId(3);
        header.setQueueOffset(42L);
        header.setTransactionId("C0A8010A04D22A139A5518B4AAC20000");
        command.setCode(ResponseCode.SUCCESS);
        command.setRemark(null);
        command.addExtField("MSG_REGION", "DefaultRegion");
        command.addExtField("TRACE_ON", "true");
        return command;
    }

    private static PullMessageRequestHeader pull() {
        PullMessageRequestHeader header = new PullMessageRequestHeader();
        header.setConsumerGroup("golden-group");
        header.setTopic("TopicGolden");
        header.setQueueId(0);
        header.setQueueOffset(7L);
        header.setMaxMsgNums(32);
        header.setSysFlag(1 | 2 | 4);
        header.setCommitOffset(6L);
        header.setSuspendTimeoutMillis(15_000L);
        header.setSubscription("TagA || 标签");
        header.setSubVersion(FixedClockStore.START_MS);
        header.setExpressionType("TAG");
        header.setMaxMsgBytes(Integer.MAX_VALUE);
        header.setBrokerName("broker-a");
        return header;
    }

    private static RemotingCommand pullAnswer() {
        RemotingCommand command = RemotingCommand.createResponseCommand(PullMessageResponseHeader.class);
        PullMessageResponseHeader header = (PullMessageResponseHeader) command.readCustomHeader();
        header.setSuggestWhichBrokerId(0L);
        header.setNextBeginOffset(8L);
        header.setMinOffset(0L);
        header.setMaxOffset(8L);
        command.setCode(ResponseCode.SUCCESS);
        command.setRemark("FOUND");
        command.setBody(CommitLogGolden.pattern(64));
        return command;
    }

    private static RemotingCommand routeAnswer() {
        HashMap<Long, String> addresses = new HashMap<>();
        addresses.put(0L, "127.0.0.1:10911");
        QueueData queues = new QueueData();
        queues.setBrokerName("broker-a");
        queues.setReadQueueNums(8);
        queues.setWriteQueueNums(8);
        queues.setPerm(6);
        TopicRouteData route = new TopicRouteData();
        route.setQueueDatas(List.of(queues));
        route.setBrokerDatas(List.of(new BrokerData("DefaultCluster", "broker-a", addresses)));
        route.setFilterServerTable(new HashMap<>());
        RemotingCommand command = RemotingCommand.createResponseCommand(ResponseCode.SUCCESS, null);
        command.setBody(route.encode());
        return command;
    }

    private static RemotingCommand heartbeat() throws Exception {
        SubscriptionData subscription = FilterAPI.buildSubscriptionData("TopicGolden", "TagA || TagB");
        subscription.setSubVersion(FixedClockStore.START_MS);
        ConsumerData consumer = new ConsumerData();
        consumer.setGroupName("golden-group");
        consumer.setConsumeType(ConsumeType.CONSUME_PASSIVELY);
        consumer.setMessageModel(MessageModel.CLUSTERING);
        consumer.setConsumeFromWhere(ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET);
        consumer.setSubscriptionDataSet(Set.of(subscription));
        ProducerData producer = new ProducerData();
        producer.setGroupName("golden-producers");
        HeartbeatData heartbeat = new HeartbeatData();
        heartbeat.setClientID("192.168.1.10@1234#1");
        heartbeat.setProducerDataSet(Set.of(producer));
        heartbeat.setConsumerDataSet(Set.of(consumer));
        RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.HEART_BEAT, null);
        command.setBody(heartbeat.encode());
        return command;
    }

    private static RemotingCommand offsetCommit() {
        UpdateConsumerOffsetRequestHeader header = new UpdateConsumerOffsetRequestHeader();
        header.setConsumerGroup("golden-group");
        header.setTopic("TopicGolden");
        header.setQueueId(0);
        header.setCommitOffset(7L);
        RemotingCommand command = RemotingCommand.createRequestCommand(RequestCode.UPDATE_CONSUMER_OFFSET, header);
        command.markOnewayRPC();
        return command;
    }

    private static RemotingCommand unicode() {
        RemotingCommand command = RemotingCommand.createResponseCommand(ResponseCode.SYSTEM_ERROR, "Fehler: ungültig \"é\" 错误 🚀\n");
        command.setLanguage(LanguageCode.PYTHON);
        command.addExtField("schlüssel", "值🔑");
        return body(command, "grüße 🚀");
    }

    private static RemotingCommand body(RemotingCommand command, String text) {
        command.setBody(CommitLogGolden.utf8(text));
        return command;
    }
}
