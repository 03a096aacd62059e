package latermq.bench5;

import com.alibaba.fastjson2.JSONObject;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.atomic.AtomicReference;

/** Counts what failed and keeps the first error. */
final class Failures {
    private final AtomicInteger count = new AtomicInteger();
    private final AtomicReference<Throwable> first = new AtomicReference<>();

    void add(Throwable failure) {
        count.incrementAndGet();
        first.compareAndSet(null, failure);
    }

    void report(JSONObject result) {
        result.put("failed", count.get());
        result.put("first_failure", first.get() == null ? "" : first.get().toString());
    }
}
