package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.io.DataInputStream;
import java.net.Socket;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Executors;
import java.util.stream.Collectors;
import org.apache.rocketmq.common.utils.NetworkUtil;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.netty.NettyClientConfig;
import org.apache.rocketmq.remoting.netty.NettyRemotingClient;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;

/** Any request, signed by RocketMQ's own hook and sent by its remoting client, and the server's answer to it. */
final class Requesting {
    private static final Map<String, NettyRemotingClient> CLIENTS = new ConcurrentHashMap<>();
    private static final int TIMEOUT_MS = 60_000;

    private Requesting() {
    }

    /** Sends {@code requests} (code, fields, body) one after the other, with {@code reconnect} each on a connection of its own. */
    static JSONObject request(JSONObject arguments) throws Exception {
        String address = arguments.getString("address");
        JSONArray answers = new JSONArray();
        for (Object one : arguments.getJSONArray("requests")) {
            RemotingCommand request = built((JSONObject) one);
            RemotingCommand answer = arguments.getBooleanValue("reconnect") ? onNewConnection(address, request, arguments)
                : client(arguments).invokeSync(address, request, TIMEOUT_MS);
            JSONObject json = JSONObject.of("code", answer.getCode(), "remark", answer.getRemark());
            json.put("fields", answer.getExtFields());
            json.put("body", answer.getBody() == null ? "" : new String(answer.getBody(), StandardCharsets.UTF_8));
            answers.add(json);
        }
        return JSONObject.of("answers", answers);
    }

    private static RemotingCommand built(JSONObject wanted) {
        RemotingCommand request = RemotingCommand.createRequestCommand(wanted.getIntValue("code"), null);
        HashMap<String, String> fields = new HashMap<>();
        wanted.getJSONObject("fields").forEach((name, value) -> fields.put(name, value.toString()));
        request.setExtFields(fields);
        if (wanted.getString("body") != null) {
            request.setBody(wanted.getString("body").getBytes(StandardCharsets.UTF_8));
        }
        return request;
    }

    /** A client of RocketMQ takes a second to shut down, so its hook and its encoder are used without it. */
    private static RemotingCommand onNewConnection(String address, RemotingCommand request, JSONObject arguments)
        throws Exception {
        RPCHook hook = Security.hook(arguments);
        if (hook != null) {
            hook.doBeforeRequest(address, request);
        }
        try (Socket socket = new Socket()) {
            socket.connect(NetworkUtil.string2SocketAddress(address), TIMEOUT_MS);
            socket.setSoTimeout(TIMEOUT_MS);
            socket.getOutputStream().write(request.encode().array());
            DataInputStream replies = new DataInputStream(socket.getInputStream());
            byte[] frame = new byte[replies.readInt()];
            replies.readFully(frame);
            return RemotingCommand.decode(frame);
        }
    }

    private static NettyRemotingClient client(JSONObject arguments) {
        String name = arguments.getString("connection") == null ? "" : arguments.getString("connection");
        return CLIENTS.computeIfAbsent(name + " " + Security.key(arguments), ignored -> open(arguments));
    }

    private static NettyRemotingClient open(JSONObject arguments) {
        NettyClientConfig config = new NettyClientConfig();
        config.setUseTLS(Security.usesTls(arguments));
        NettyRemotingClient client = new NettyRemotingClient(config);
        RPCHook hook = Security.hook(arguments);
        if (hook != null) {
            client.registerRPCHook(hook);
        }
        client.start();
        return client;
    }

    static void stopAll() {
        CLIENTS.values().stream().map(client -> CompletableFuture.runAsync(client::shutdown, Executors.newSingleThreadExecutor()))
            .collect(Collectors.toList()).forEach(CompletableFuture::join);
        CLIENTS.clear();
    }
}
