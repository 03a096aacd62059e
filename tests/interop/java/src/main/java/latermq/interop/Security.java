package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.acl.common.AclClientRPCHook;
import org.apache.rocketmq.acl.common.SessionCredentials;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.TlsSystemConfig;

/** The user and the TLS settings of a command's client: {@code user}, {@code secret} and {@code tls}. */
final class Security {
    private Security() {
    }

    /** Signs requests as {@code user}; null without one. */
    static RPCHook hook(JSONObject arguments) {
        String user = arguments.getString("user");
        return user == null ? null : new AclClientRPCHook(new SessionCredentials(user, arguments.getString("secret")));
    }

    static boolean usesTls(JSONObject arguments) {
        return arguments.getBooleanValue("tls", TlsSystemConfig.tlsEnable);
    }

    /** Clients of different users, or with and without TLS, have different keys. */
    static String key(JSONObject arguments) {
        return arguments.getString("user") + " " + arguments.getString("secret") + " " + usesTls(arguments);
    }

    /** Sets what the client otherwise reads from system properties at its start; clients that are open keep theirs. */
    static JSONObject configureTls(JSONObject arguments) {
        TlsSystemConfig.tlsTestModeEnable = arguments.getBooleanValue("test_mode", true);
        TlsSystemConfig.tlsClientAuthServer = arguments.getBooleanValue("verify", false);
        TlsSystemConfig.tlsClientTrustCertPath = arguments.getString("trusted");
        TlsSystemConfig.tlsClientCertPath = arguments.getString("certificate");
        TlsSystemConfig.tlsClientKeyPath = arguments.getString("key");
        TlsSystemConfig.tlsProtocols = arguments.getString("protocols");
        return new JSONObject();
    }
}
