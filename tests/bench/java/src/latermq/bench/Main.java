package latermq.bench;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONObject;
import java.io.BufferedReader;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/**
 * Load for the benchmarks: one command per JSON line of standard input, one reply per line of standard output, until
 * the input ends. One process loads all brokers in turn, so the JIT has compiled the same client code for each.
 */
public final class Main {
    private Main() {
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream out = new PrintStream(new FileOutputStream(FileDescriptor.out), true, StandardCharsets.UTF_8);
        System.setOut(System.err);
        out.println(JSONObject.of("event", "ready"));
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            out.println(answer(JSON.parseObject(line)));
        }
        SendLoad.stopAll();
        // The client leaves threads behind that are no daemons.
        System.exit(0);
    }

    private static JSONObject answer(JSONObject request) {
        JSONObject reply = JSONObject.of("reply", request.get("request"));
        try {
            reply.put("result", run(request.getString("command"), request.getJSONObject("arguments")));
        } catch (Exception failure) {
            failure.printStackTrace();
            String message = String.valueOf(failure.getMessage());
            reply.put("error", JSONObject.of("type", failure.getClass().getSimpleName(), "code", -1, "message", message));
        }
        return reply;
    }

    private static JSONObject run(String command, JSONObject arguments) throws Exception {
        switch (command) {
            case "send":
                return new SendLoad(arguments).run();
            case "stored":
                return SendLoad.stored(arguments);
            case "consume":
                return ConsumeLoad.run(arguments);
            case "connect":
                return ConnectLoad.run(arguments);
            default:
                throw new IllegalArgumentException("no command " + command);
        }
    }
}
