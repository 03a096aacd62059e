/** Apache's DefaultMessageStore with a clock that only moves when told to, so that its files are reproducible. */
package latermq.golden;

import java.io.IOException;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.ServerSocket;
import java.net.UnknownHostException;
import java.nio.file.Path;
import java.util.HexFormat;
import java.util.concurrent.ConcurrentHashMap;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.SystemClock;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

final class FixedClockStore extends DefaultMessageStore {
    static final long START_MS = 1_700_000_000_000L;

    private volatile long nowMs = START_MS;

    private FixedClockStore(MessageStoreConfig config, BrokerConfig broker) throws IOException {
        super(config, new BrokerStatsManager("golden", true), null, broker, new ConcurrentHashMap<>());
    }

    static FixedClockStore open(MessageStoreConfig config, Path root) throws Exception {
        config.setStorePathRootDir(root.toString());
        config.setStorePathCommitLog(root.resolve("commitlog").toString());
        config.setHaListenPort(freePort());
        BrokerConfig broker = new BrokerConfig();
        broker.setBrokerIP1("127.0.0.1");
        FixedClockStore store = new FixedClockStore(config, broker);
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
        return store;
    }

    void advance(long ms) {
        nowMs += ms;
    }

    @Override
    public SystemClock getSystemClock() {
        return new SystemClock() {
            @Override
            public long now() {
                return nowMs;
            }
        };
    }

    @Override
    public long now() {
        return nowMs;
    }

    /** Queues and index are written by another thread; one append at a time keeps their order ours. */
    void waitForDispatch() throws InterruptedException {
        long giveUpAt = System.nanoTime() + 10_000_000_000L;
        while (dispatchBehindBytes() > 0) {
            if (System.nanoTime() > giveUpAt) {
                throw new IllegalStateException("dispatch is stuck");
            }
            Thread.sleep(2);
        }
    }

    static int freePort() throws IOException {
        try (ServerSocket socket = new ServerSocket(0)) {
            return socket.getLocalPort();
        }
    }

    static InetSocketAddress host(String addressHex, int port) throws UnknownHostException {
        return new InetSocketAddress(InetAddress.getByAddress(HexFormat.of().parseHex(addressHex)), port);
    }
}
