package latermq.interop5;

import com.alibaba.fastjson2.JSONObject;
import java.io.Closeable;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.stream.Collectors;
import org.apache.rocketmq.client.apis.ClientConfiguration;
import org.apache.rocketmq.client.apis.ClientConfigurationBuilder;
import org.apache.rocketmq.client.apis.ClientServiceProvider;
import org.apache.rocketmq.client.apis.StaticSessionCredentialsProvider;

/** Producers and consumers by name, with the client's defaults: TLS, whose certificate it does not verify. */
final class Clients {
    static final ClientServiceProvider PROVIDER = ClientServiceProvider.loadService();
    private static final Map<String, Closeable> RUNNING = new ConcurrentHashMap<>();

    private Clients() {
    }

    static ClientConfiguration configuration(JSONObject arguments) {
        ClientConfigurationBuilder builder = ClientConfiguration.newBuilder();
        if (arguments.containsKey("user")) {
            builder.setCredentialProvider(
                new StaticSessionCredentialsProvider(arguments.getString("user"), arguments.getString("secret")));
        }
        return builder.setEndpoints(arguments.getString("endpoints")).build();
    }

    static JSONObject add(String name, Closeable client) {
        RUNNING.put(name, client);
        return new JSONObject();
    }

    static <T> T get(String name, Class<T> kind) {
        Closeable client = RUNNING.get(name);
        if (client == null) {
            throw new IllegalArgumentException("no client " + name);
        }
        return kind.cast(client);
    }

    static JSONObject stop(JSONObject arguments) throws Exception {
        RUNNING.remove(arguments.getString("name")).close();
        return new JSONObject();
    }

    static int stopAll() {
        // Each waits for its receives in flight, so they wait together.
        List<CompletableFuture<Boolean>> closing = RUNNING.values().stream()
            .map(client -> CompletableFuture.supplyAsync(() -> close(client), task -> new Thread(task).start()))
            .collect(Collectors.toList());
        return closing.stream().allMatch(CompletableFuture::join) ? 0 : 1;
    }

    private static boolean close(Closeable client) {
        try {
            client.close();
            return true;
        } catch (Throwable failure) {
            failure.printStackTrace();
            return false;
        }
    }
}
