package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.QueryResult;
import org.apache.rocketmq.client.consumer.DefaultMQPullConsumer;

/** Looks messages up: by the id that names their place in the log, by unique key, by message key. */
@SuppressWarnings("deprecation")
final class Looking {
    private static final int MOST = 64;

    private Looking() {
    }

    /** The id may be an offset id or a unique key; the client tells them apart. */
    static JSONObject viewMessage(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = Pulling.consumer(arguments);
        return Messages.json(consumer.viewMessage(arguments.getString("topic"), arguments.getString("id")));
    }

    static JSONObject queryMessage(JSONObject arguments) throws Exception {
        DefaultMQPullConsumer consumer = Pulling.consumer(arguments);
        QueryResult result = consumer.queryMessage(arguments.getString("topic"), arguments.getString("key"), MOST,
            arguments.getLongValue("begin_ms", 0), arguments.getLongValue("end_ms", Long.MAX_VALUE));
        return JSONObject.of("messages", Messages.json(result.getMessageList()));
    }
}
