/** Java's string hash codes, tags codes, subscriptions and property strings. */
package latermq.golden;

import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.remoting.protocol.filter.FilterAPI;
import org.apache.rocketmq.remoting.protocol.heartbeat.SubscriptionData;

final class TextGolden {
    static void write(Output out, Path scratch) throws Exception {
        List<Object> hashes = new ArrayList<>();
        List<String> texts = List.of("", "a", "TagA", "TagB", "Aa", "BB", "polygenelubricants", "grüße", "标签", "🚀",
            "🚀x🔑", "é", "e\u0301", "\u0000", "ｔａｇ", "TopicGolden#order-4711", "x".repeat(300), "tag with space", "*");
        for (String text : texts) {
            hashes.add(Output.map("text", text, "hash_code", text.hashCode(),
                "tags_code", MessageExtBrokerInner.tagsString2tagsCode(null, text)));
        }

        List<Object> subscriptions = new ArrayList<>();
        for (String expression : new String[] {"*", "", null, "TagA", "TagA || TagB", "TagA||TagB", " 标签 ||  || 🚀", "Aa||BB"}) {
            SubscriptionData data = FilterAPI.buildSubscriptionData("TopicGolden", expression);
            subscriptions.add(Output.map("expression", expression, "sub_string", data.getSubString(),
                "tags", new TreeSet<>(data.getTagsSet()), "codes", new TreeSet<>(data.getCodeSet())));
        }

        List<Object> properties = new ArrayList<>();
        List<String> strings = List.of("", "a\u0001b\u0002", "a\u0001b", "a\u0001b\u0002c\u0001d", "a\u0001\u0002", "\u0001b\u0002",
            "ab\u0002", "\u0002\u0002a\u0001b\u0002", "a\u0001b\u0001c\u0002", "a\u0001b\u0002a\u0001c\u0002",
            "名\u0001值🚀\u0002", "a\u0001 \u0002", "TAGS\u0001TagA\u0002KEYS\u0001k1 k2\u0002");
        for (String string : strings) {
            properties.add(Output.map("string", string,
                "properties", new TreeMap<>(MessageDecoder.string2messageProperties(string))));
        }
        out.json("texts.json", Output.map("hashes", hashes, "subscriptions", subscriptions,
            "property_strings", properties));
    }
}
