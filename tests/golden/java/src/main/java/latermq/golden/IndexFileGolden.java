/** One key index file, written key by key with Apache's IndexFile, and what its own look-up answers. */
package latermq.golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.store.index.IndexFile;

final class IndexFileGolden {
    private static final int HASH_SLOTS = 8;
    private static final int INDEX_ENTRIES = 16;

    static void write(Output out, Path scratch) throws Exception {
        // Its mapped file takes the name for a number.
        Path path = scratch.resolve("00000000000000000000");
        IndexFile file = new IndexFile(path.toString(), HASH_SLOTS, INDEX_ENTRIES, 0, 0);
        long begin = FixedClockStore.START_MS;
        List<Object> puts = new ArrayList<>();
        put(file, puts, "TopicGolden#order-1", 5000, begin);
        put(file, puts, "TopicGolden#order-2", 5300, begin + 999);
        put(file, puts, "TopicGolden#order-1", 5600, begin + 1000);
        // "Aa" and "BB" have one hash code: a look-up finds both and must compare the keys in the records.
        put(file, puts, "T#Aa", 5900, begin + 61_500);
        put(file, puts, "T#BB", 6200, begin + 61_501);
        // Its hash code is the least int, which has no absolute value: counted as 0.
        put(file, puts, "polygenelubricants", 6500, begin + 70_000);
        put(file, puts, "主题#键🔑", 6800, begin + 80_000);
        // A clock that stepped back is written as no time at all.
        put(file, puts, "TopicGolden#order-3", 7100, begin - 10_000);
        for (int i = 0; i < 9; i++) {
            put(file, puts, "T#fill-" + i, 8000 + 100L * i, begin + 90_000 + 500L * i);
        }

        List<Object> lookups = new ArrayList<>();
        long always = begin + 1_000_000;
        lookup(file, lookups, "TopicGolden#order-1", 32, 0, always);
        lookup(file, lookups, "TopicGolden#order-1", 1, 0, always);
        lookup(file, lookups, "TopicGolden#order-1", 32, begin + 500, always);
        lookup(file, lookups, "T#Aa", 32, 0, always);
        lookup(file, lookups, "polygenelubricants", 32, 0, always);
        lookup(file, lookups, "主题#键🔑", 32, 0, always);
        lookup(file, lookups, "nobody", 32, 0, always);
        file.shutdown();

        out.bytes("index-file.bin", Files.readAllBytes(path));
        out.json("index-file.json", Output.map("hash_slots", HASH_SLOTS, "index_entries", INDEX_ENTRIES,
            "puts", puts, "lookups", lookups));
    }

    private static void put(IndexFile file, List<Object> puts, String key, long offset, long storeMs) {
        boolean accepted = file.putKey(key, offset, storeMs);
        puts.add(Output.map("key", key, "offset", offset, "store_ms", storeMs, "accepted", accepted));
    }

    private static void lookup(IndexFile file, List<Object> lookups, String key, int most, long beginMs, long endMs) {
        List<Long> offsets = new ArrayList<>();
        file.selectPhyOffset(offsets, key, most, beginMs, endMs);
        lookups.add(Output.map("key", key, "most", most, "begin_ms", beginMs, "end_ms", endMs, "offsets", offsets));
    }
}
