package latermq.bench;

import com.alibaba.fastjson2.JSONObject;
import java.io.DataInputStream;
import java.net.Socket;
import java.security.SecureRandom;
import java.security.cert.X509Certificate;
import java.util.HashMap;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;
import javax.net.SocketFactory;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManager;
import javax.net.ssl.X509TrustManager;
import org.apache.rocketmq.remoting.RPCHook;
import org.apache.rocketmq.remoting.protocol.RemotingCommand;
import org.apache.rocketmq.remoting.protocol.RequestCode;
import org.apache.rocketmq.remoting.protocol.ResponseCode;

/** Connects {@code count} times from {@code threads} threads; each connection is served one signed request. */
final class ConnectLoad {
    private static final int TIMEOUT_MS = 20_000;

    private ConnectLoad() {
    }

    static JSONObject run(JSONObject arguments) throws Exception {
        int count = arguments.getIntValue("count");
        SocketFactory sockets = Access.usesTls(arguments) ? trustingAnything() : SocketFactory.getDefault();
        AtomicInteger claimed = new AtomicInteger();
        AtomicReference<Exception> failure = new AtomicReference<>();
        Thread[] threads = new Thread[arguments.getIntValue("threads")];
        long startedNs = System.nanoTime();
        for (int i = 0; i < threads.length; i++) {
            threads[i] = new Thread(() -> {
                while (failure.get() == null && claimed.getAndIncrement() < count) {
                    try {
                        connect(sockets, arguments);
                    } catch (Exception error) {
                        failure.compareAndSet(null, error);
                    }
                }
            }, "connect-" + i);
            threads[i].start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        if (failure.get() != null) {
            throw failure.get();
        }
        return JSONObject.of("connected", count, "took_ns", System.nanoTime() - startedNs);
    }

    private static void connect(SocketFactory sockets, JSONObject arguments) throws Exception {
        String[] address = arguments.getString("address").split(":");
        RemotingCommand request = RemotingCommand.createRequestCommand(RequestCode.GET_MAX_OFFSET, null);
        HashMap<String, String> fields = new HashMap<>();
        fields.put("topic", arguments.getString("topic"));
        fields.put("queueId", "0");
        request.setExtFields(fields);
        RPCHook hook = Access.hook(arguments);
        if (hook != null) {
            hook.doBeforeRequest(arguments.getString("address"), request);
        }
        try (Socket socket = sockets.createSocket(address[0], Integer.parseInt(address[1]))) {
            socket.setSoTimeout(TIMEOUT_MS);
            socket.setTcpNoDelay(true);
            socket.getOutputStream().write(request.encode().array());
            DataInputStream replies = new DataInputStream(socket.getInputStream());
            byte[] frame = new byte[replies.readInt()];
            replies.readFully(frame);
            RemotingCommand reply = RemotingCommand.decode(frame);
            if (reply.getCode() != ResponseCode.SUCCESS) {
                throw new IllegalStateException("refused with " + reply.getCode() + ": " + reply.getRemark());
            }
        }
    }

    private static SocketFactory trustingAnything() throws Exception {
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, new TrustManager[] {new X509TrustManager() {
            @Override
            public void checkClientTrusted(X509Certificate[] chain, String type) {
            }

            @Override
            public void checkServerTrusted(X509Certificate[] chain, String type) {
            }

            @Override
            public X509Certificate[] getAcceptedIssuers() {
                return new X509Certificate[0];
            }
        }}, new SecureRandom());
        return context.getSocketFactory();
    }
}
