package latermq.interop5;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

/** Runs one command per JSON line of standard input, each in a thread of its own, until the input ends. */
public final class Main {
    private static final Map<String, Command> COMMANDS = Map.ofEntries(
        Map.entry("start_producer", Producing::start),
        Map.entry("send", Producing::send),
        Map.entry("end_transaction", Producing::endTransaction),
        Map.entry("recall", Producing::recall),
        Map.entry("start_simple", Consuming::startSimple),
        Map.entry("receive", Consuming::receive),
        Map.entry("ack", Consuming::ack),
        Map.entry("change", Consuming::change),
        Map.entry("start_push", Consuming::startPush),
        Map.entry("stop", Clients::stop));

    // The client's exceptions have the code of the answer in their text alone.
    private static final Pattern RESPONSE_CODE = Pattern.compile("response-code=(\\d+)");

    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        Out.claim();
        Out.line(JSONObject.of("event", "ready"));
        ExecutorService threads = Executors.newCachedThreadPool();
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JSONObject request = JSON.parseObject(line);
            threads.execute(() -> answer(request));
        }
        int status = Clients.stopAll();
        // The client leaves threads behind that are not daemons.
        System.exit(status);
    }

    private static void answer(JSONObject request) {
        JSONObject reply = JSONObject.of("reply", request.get("request"));
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

    private static JSONObject describe(Throwable failure) {
        Throwable cause = failure;
        while ((cause instanceof ExecutionException || cause instanceof CompletionException)
            && cause.getCause() != null) {
            cause = cause.getCause();
        }
        String message = String.valueOf(cause.getMessage());
        Matcher code = RESPONSE_CODE.matcher(message);
        return JSONObject.of(
            "type", cause.getClass().getSimpleName(),
            "code", code.find() ? Integer.parseInt(code.group(1)) : -1,
            "message", message);
    }
}
