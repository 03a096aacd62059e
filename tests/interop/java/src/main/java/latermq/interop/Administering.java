package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.ByteArrayOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Collection;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.tools.admin.DefaultMQAdminExt;
import org.apache.rocketmq.tools.command.MQAdminStartup;

/** Topics, groups, and the commands of mqadmin, run inside this JVM because starting one for each takes seconds. */
final class Administering {
    private static final Map<String, DefaultMQAdminExt> ADMINS = new ConcurrentHashMap<>();
    private static final long TIMEOUT_MS = 20_000;
    private static final long ROUTE_WAIT_MS = 10_000;
    private static final long MODE_TIMEOUT_MS = 10_000;
    private static final long ROUTE_POLL_MS = 20;

    private Administering() {
    }

    /** Makes topics on every broker and returns once the name server knows them. */
    static JSONObject makeTopics(JSONObject arguments) throws Exception {
        DefaultMQAdminExt admin = admin(arguments);
        for (BrokerData broker : awaitBrokers(admin)) {
            for (Object topic : arguments.getJSONArray("topics")) {
                int queues = arguments.getIntValue("queues", 4);
                TopicConfig config = new TopicConfig(topic.toString(), queues, queues);
                if (arguments.containsKey("message_type")) {
                    config.setAttributes(Map.of("+message.type", arguments.getString("message_type")));
                }
                admin.createAndUpdateTopicConfig(broker.selectBrokerAddr(), config);
            }
        }
        for (Object topic : arguments.getJSONArray("topics")) {
            awaitRoute(admin, topic.toString());
        }
        return new JSONObject();
    }

    /** Makes a group whose messages are dead letters after so many retries. */
    static JSONObject makeGroup(JSONObject arguments) throws Exception {
        SubscriptionGroupConfig config = new SubscriptionGroupConfig();
        config.setGroupName(arguments.getString("group"));
        config.setRetryMaxTimes(arguments.getIntValue("retries", 16));
        config.setConsumeMessageOrderly(arguments.getBooleanValue("in_order"));
        DefaultMQAdminExt admin = admin(arguments);
        for (BrokerData broker : awaitBrokers(admin)) {
            admin.createAndUpdateSubscriptionGroupConfig(broker.selectBrokerAddr(), config);
        }
        return new JSONObject();
    }

    static JSONObject consumerIds(JSONObject arguments) throws Exception {
        JSONArray ids = new JSONArray();
        try {
            admin(arguments).examineConsumerConnectionInfo(arguments.getString("group")).getConnectionSet()
                .forEach(connection -> ids.add(connection.getClientId()));
        } catch (MQBrokerException failure) {
            if (failure.getResponseCode() != ResponseCode.CONSUMER_NOT_ONLINE) {
                throw failure;
            }
        }
        return JSONObject.of("ids", ids);
    }

    /** A group's offsets, asked for without joining the group. */
    static JSONObject groupOffsets(JSONObject arguments) throws Exception {
        String topic = arguments.getString("topic");
        JSONArray queues = new JSONArray();
        admin(arguments).examineConsumeStats(arguments.getString("group"), topic).getOffsetTable()
            .forEach((queue, offsets) -> {
                JSONObject json = Messages.json(queue);
                json.put("offset", offsets.getConsumerOffset());
                json.put("max", offsets.getBrokerOffset());
                queues.add(json);
            });
        return JSONObject.of("queues", queues);
    }

    /** Lets a group pull or pop a topic on every broker. */
    static JSONObject setMode(JSONObject arguments) throws Exception {
        DefaultMQAdminExt admin = admin(arguments);
        MessageRequestMode mode = MessageRequestMode.valueOf(arguments.getString("mode"));
        for (BrokerData broker : awaitBrokers(admin)) {
            admin.setMessageRequestMode(broker.selectBrokerAddr(), arguments.getString("topic"),
                arguments.getString("group"), mode, arguments.getIntValue("shared_with", 0), MODE_TIMEOUT_MS);
        }
        return new JSONObject();
    }

    /** Runs {@code mqadmin} with {@code argv} and returns what it printed; it reports failures only there. */
    static JSONObject mqadmin(JSONObject arguments) {
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        PrintStream capture = new PrintStream(printed, true, StandardCharsets.UTF_8);
        PrintStream out = System.out;
        PrintStream err = System.err;
        System.setOut(capture);
        System.setErr(capture);
        try {
            MQAdminStartup.main0(arguments.getJSONArray("argv").toArray(String.class), null);
        } finally {
            System.setOut(out);
            System.setErr(err);
            System.clearProperty("rocketmq.namesrv.addr");
        }
        return JSONObject.of("output", printed.toString(StandardCharsets.UTF_8));
    }

    /** A broker may say that it is up before the name server has heard of it. */
    private static Collection<BrokerData> awaitBrokers(DefaultMQAdminExt admin) throws Exception {
        long deadline = System.currentTimeMillis() + ROUTE_WAIT_MS;
        while (true) {
            Map<String, BrokerData> brokers = admin.examineBrokerClusterInfo().getBrokerAddrTable();
            if (brokers != null && !brokers.isEmpty()) {
                return brokers.values();
            }
            if (System.currentTimeMillis() > deadline) {
                throw new IllegalStateException("the name server knows no broker");
            }
            Thread.sleep(ROUTE_POLL_MS);
        }
    }

    private static void awaitRoute(DefaultMQAdminExt admin, String topic) throws Exception {
        long deadline = System.currentTimeMillis() + ROUTE_WAIT_MS;
        while (true) {
            try {
                admin.examineTopicRouteInfo(topic);
                return;
            } catch (MQClientException unknown) {
                if (System.currentTimeMillis() > deadline) {
                    throw unknown;
                }
                Thread.sleep(ROUTE_POLL_MS);
            }
        }
    }

    private static DefaultMQAdminExt admin(JSONObject arguments) {
        String namesrv = arguments.getString("namesrv");
        return ADMINS.computeIfAbsent(namesrv + " " + Security.key(arguments), ignored -> {
            DefaultMQAdminExt admin = new DefaultMQAdminExt(Security.hook(arguments), TIMEOUT_MS);
            admin.setUseTLS(Security.usesTls(arguments));
            admin.setNamesrvAddr(namesrv);
            admin.setInstanceName("admin-" + System.nanoTime());
            try {
                admin.start();
            } catch (MQClientException failure) {
                throw new IllegalStateException("admin client cannot start", failure);
            }
            return admin;
        });
    }

    static void stopAll() {
        ADMINS.values().forEach(DefaultMQAdminExt::shutdown);
        ADMINS.clear();
    }
}
