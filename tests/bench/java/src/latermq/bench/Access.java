package latermq.bench;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;

/** The credentials and the encryption of a load: {@code user}, {@code secret} and {@code tls}. */
final class Access {
    private Access() {
    }

    /** Signs requests; null without a user. */
    static RPCHook hook(JSONObject arguments) {
        String user = arguments.getString("user");
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, arguments.getString("secret")));
    }

    static boolean usesTls(JSONObject arguments) {
        return arguments.getBooleanValue("tls");
    }

    /** Loads with different keys use different connections. */
    static String key(JSONObject arguments) {
        return arguments.getString("namesrv") + " " + arguments.getString("user") + " " + usesTls(arguments);
    }
}
