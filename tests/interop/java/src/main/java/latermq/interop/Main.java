package latermq.interop;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import org.apache.rocketmq.client.exception.MQBrokerException;
import org.apache.rocketmq.client.exception.MQClientException;

/**
 * Runs one command given as {@code NAME --argument value ...}, or, as {@code session}, one command per JSON line of
 * standard input until that ends. A session keeps its producers and consumers from one command to the next, so that a
 * whole test module needs one JVM start.
 */
public final class Main {
    private static final Map<String, Command> COMMANDS = new TreeMap<>();

    static {
        COMMANDS.put("send", Sending::send);
        COMMANDS.put("send_raw", RawSending::send);
        COMMANDS.put("send_in_transaction", Transacting::send);
        COMMANDS.put("stop_producer", Sending::stop);
        COMMANDS.put("recall", Recalling::recall);
        COMMANDS.put("recall_raw", Recalling::recallRaw);
        COMMANDS.put("read_handle", Recalling::readHandle);
        COMMANDS.put("make_handle", Recalling::makeHandle);
        COMMANDS.put("consume", PushConsuming::consume);
        COMMANDS.put("start_consumer", PushConsuming::start);
        COMMANDS.put("assigned", PushConsuming::assigned);
        COMMANDS.put("stop_consumer", PushConsuming::stop);
        COMMANDS.put("lite_pull", LitePulling::pull);
        COMMANDS.put("queues", Pulling::queues);
        COMMANDS.put("pull", Pulling::pull);
        COMMANDS.put("offset_at", Pulling::offsetAt);
        COMMANDS.put("commit", Pulling::commit);
        COMMANDS.put("committed", Pulling::committed);
        COMMANDS.put("view_message", Looking::viewMessage);
        COMMANDS.put("query_message", Looking::queryMessage);
        COMMANDS.put("make_topics", Administering::makeTopics);
        COMMANDS.put("make_group", Administering::makeGroup);
        COMMANDS.put("consumer_ids", Administering::consumerIds);
        COMMANDS.put("group_offsets", Administering::groupOffsets);
        COMMANDS.put("set_mode", Administering::setMode);
        COMMANDS.put("mqadmin", Administering::mqadmin);
        COMMANDS.put("request", Requesting::request);
        COMMANDS.put("configure_tls", Security::configureTls);
    }

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        Out.claim();
        if (arguments.length == 0 || !(arguments[0].equals("session") || COMMANDS.containsKey(arguments[0]))) {
            System.err.println("usage: session | NAME --argument value ..., NAME one of " + COMMANDS.keySet());
            System.exit(2);
        }
        int status = arguments[0].equals("session") ? session() : once(arguments);
        // Each shutdown may wait for seconds inside the client, so they wait together.
        Stream.<Runnable>of(PushConsuming::stopAll, Sending::stopAll, Pulling::stopAll, Administering::stopAll,
            Requesting::stopAll).map(CompletableFuture::runAsync).collect(Collectors.toList()).forEach(CompletableFuture::join);
        // The clients leave threads behind that are no daemons.
        System.exit(status);
    }

    private static int once(String[] arguments) {
        try {
            Out.line(COMMANDS.get(arguments[0]).run(parse(arguments)));
            return 0;
        } catch (Throwable failure) {
            failure.printStackTrace();
            System.err.println(arguments[0] + " failed: " + failure);
            return 1;
        }
    }

    private static JSONObject parse(String[] arguments) {
        JSONObject named = new JSONObject();
        for (int i = 1; i < arguments.length; i += 2) {
            if (!arguments[i].startsWith("--") || i + 1 == arguments.length) {
                throw new IllegalArgumentException("expected --name value, got " + arguments[i]);
            }
            String value = arguments[i + 1];
            boolean structured = value.startsWith("{") || value.startsWith("[");
            named.put(arguments[i].substring(2).replace('-', '_'), structured ? JSON.parse(value) : value);
        }
        return named;
    }

    private static int session() throws Exception {
        Out.line(JSONObject.of("event", "ready"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            JSONObject reply = new JSONObject();
            reply.put("reply", request.get("request"));
            try {
                Command command = COMMANDS.get(request.getString("command"));
                if (command == null) {
                    throw new IllegalArgumentException("no command " + request.getString("command"));
                }
                reply.put("result", command.run(request.getJSONObject("arguments")));
            } catch (Throwable failure) {
                failure.printStackTrace();
                reply.put("error", describe(failure));
            }
            Out.line(reply);
        }
        return 0;
    }

    static JSONObject describe(Throwable failure) {
        JSONObject error = new JSONObject();
        error.put("type", failure.getClass().getSimpleName());
        error.put("code", code(failure));
        error.put("message", String.valueOf(failure.getMessage()));
        error.put("cause", String.valueOf(failure.getCause()));
        return error;
    }

    private static int code(Throwable failure) {
        for (Throwable cause = failure; cause != null; cause = cause.getCause()) {
            if (cause instanceof MQBrokerException) {
                return ((MQBrokerException) cause).getResponseCode();
            }
            if (cause instanceof MQClientException && ((MQClientException) cause).getResponseCode() != -1) {
                return ((MQClientException) cause).getResponseCode();
            }
        }
        return -1;
    }
}
