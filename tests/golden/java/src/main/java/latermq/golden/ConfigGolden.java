/** The broker's JSON files, as 5.5.0 writes them and with the JSON library that 5.3 used. */
package latermq.golden;

import com.alibaba.fastjson.JSON;
import java.nio.file.Path;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.broker.loadbalance.MessageRequestModeManager;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.TopicFilterType;
import org.apache.rocketmq.common.message.MessageRequestMode;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.body.SetMessageRequestModeRequestBody;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;

final class ConfigGolden {
    static void write(Output out, Path scratch) throws Exception {
        TopicConfigSerializeWrapper topics = topics();
        SubscriptionGroupManager groups = groups();
        ConsumerOffsetManager offsets = offsets();
        DelayOffsetSerializeWrapper levels = levels();
        MessageRequestModeManager modes = modes();

        text(out, "config/topics.json", topics.toJson(true));
        text(out, "config/subscriptionGroup.json", groups.encode(true));
        text(out, "config/consumerOffset.json", offsets.encode(true));
        text(out, "config/delayOffset.json", levels.toJson(true));
        text(out, "config/messageRequestMode.json", modes.encode(true));

        // Not the groups: what 5.5.0 keeps out of their JSON is marked for the new library only.
        Map<String, Object> old = new LinkedHashMap<>();
        old.put("topics.json", topics);
        old.put("consumerOffset.json", offsets);
        old.put("delayOffset.json", levels);
        old.put("messageRequestMode.json", modes);
        for (Map.Entry<String, Object> file : old.entrySet()) {
            text(out, "config-fastjson1/" + file.getKey(), JSON.toJSONString(file.getValue(), true));
        }

        out.json("config.json", Output.map(
            "data_version", Output.map("state_version", 5, "timestamp_ms", FixedClockStore.START_MS, "counter", 3),
            "topics", Output.map(
                "TopicGolden", Output.map("read_queues", 8, "write_queues", 8, "perm", 6, "order", false,
                    "attributes", Output.map("message.type", "DELAY")),
                "TopicOrdered", Output.map("read_queues", 4, "write_queues", 2, "perm", 4, "order", true,
                    "attributes", Output.map())),
            "groups", Output.map(
                "golden-group", Output.map("retry_max_times", 16, "retry_queues", 1),
                "strict-group", Output.map("retry_max_times", 3, "retry_queues", 2)),
            "consumer_offsets", Output.map(
                "TopicGolden@golden-group", Output.map("0", 7, "1", 8_589_934_592L),
                "%RETRY%golden-group@golden-group", Output.map("0", 0)),
            "delay_offsets", Output.map("1", 12, "3", 0, "18", 8_589_934_592L),
            "request_modes", Output.map(
                "TopicGolden", Output.map(
                    "golden-group", Output.map("mode", "POP", "shared_with", 2),
                    "strict-group", Output.map("mode", "PULL", "shared_with", 0)),
                "TopicOrdered", Output.map("golden-group", Output.map("mode", "POP", "shared_with", -1)))));
    }

    private static void text(Output out, String name, String json) throws Exception {
        out.bytes(name, CommitLogGolden.utf8(json));
    }

    private static DataVersion version() {
        DataVersion version = new DataVersion();
        version.setStateVersion(5);
        version.setTimestamp(FixedClockStore.START_MS);
        version.setCounter(new AtomicLong(3));
        return version;
    }

    private static TopicConfigSerializeWrapper topics() {
        TopicConfig plain = new TopicConfig("TopicGolden", 8, 8, 6);
        plain.setAttributes(new LinkedHashMap<>(Map.of("message.type", "DELAY")));
        TopicConfig ordered = new TopicConfig("TopicOrdered", 4, 2, 4);
        ordered.setOrder(true);
        ordered.setTopicFilterType(TopicFilterType.MULTI_TAG);
        ordered.setTopicSysFlag(2);
        ConcurrentMap<String, TopicConfig> table = new ConcurrentHashMap<>();
        table.put("TopicGolden", plain);
        table.put("TopicOrdered", ordered);
        TopicConfigSerializeWrapper wrapper = new TopicConfigSerializeWrapper();
        wrapper.setTopicConfigTable(table);
        wrapper.setDataVersion(version());
        return wrapper;
    }

    private static SubscriptionGroupManager groups() {
        SubscriptionGroupConfig plain = new SubscriptionGroupConfig();
        plain.setGroupName("golden-group");
        SubscriptionGroupConfig strict = new SubscriptionGroupConfig();
        strict.setGroupName("strict-group");
        strict.setRetryMaxTimes(3);
        strict.setRetryQueueNums(2);
        strict.setConsumeMessageOrderly(true);
        SubscriptionGroupManager manager = new SubscriptionGroupManager();
        ConcurrentMap<String, SubscriptionGroupConfig> table = new ConcurrentHashMap<>();
        table.put("golden-group", plain);
        table.put("strict-group", strict);
        manager.setSubscriptionGroupTable(table);
        manager.setDataVersion(version());
        return manager;
    }

    private static ConsumerOffsetManager offsets() {
        ConcurrentMap<Integer, Long> golden = new ConcurrentHashMap<>(Map.of(0, 7L, 1, 8_589_934_592L));
        ConcurrentMap<Integer, Long> retry = new ConcurrentHashMap<>(Map.of(0, 0L));
        ConcurrentMap<String, ConcurrentMap<Integer, Long>> table = new ConcurrentHashMap<>();
        table.put("TopicGolden@golden-group", golden);
        table.put("%RETRY%golden-group@golden-group", retry);
        ConsumerOffsetManager manager = new ConsumerOffsetManager();
        manager.setOffsetTable(table);
        manager.setDataVersion(version());
        return manager;
    }

    private static DelayOffsetSerializeWrapper levels() {
        DelayOffsetSerializeWrapper wrapper = new DelayOffsetSerializeWrapper();
        wrapper.setOffsetTable(new ConcurrentHashMap<>(Map.of(1, 12L, 3, 0L, 18, 8_589_934_592L)));
        wrapper.setDataVersion(version());
        return wrapper;
    }

    private static MessageRequestModeManager modes() {
        MessageRequestModeManager manager = new MessageRequestModeManager();
        mode(manager, "TopicGolden", "golden-group", MessageRequestMode.POP, 2);
        mode(manager, "TopicGolden", "strict-group", MessageRequestMode.PULL, 0);
        mode(manager, "TopicOrdered", "golden-group", MessageRequestMode.POP, -1);
        return manager;
    }

    private static void mode(
        MessageRequestModeManager manager, String topic, String group, MessageRequestMode mode, int sharedWith) {
        SetMessageRequestModeRequestBody body = new SetMessageRequestModeRequestBody();
        body.setTopic(topic);
        body.setConsumerGroup(group);
        body.setMode(mode);
        body.setPopShareQueueNum(sharedWith);
        manager.setMessageRequestMode(topic, group, body);
    }
}
