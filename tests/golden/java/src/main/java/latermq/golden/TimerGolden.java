/** Timer log, wheel and checkpoint of a few timers, put the way Apache's timer store does, with a fixed clock. */
package latermq.golden;

import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.rocketmq.store.timer.Slot;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerLog;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerWheel;

final class TimerGolden {
    private static final int FILE_BYTES = 1024;
    private static final int SLOTS = 30;
    private static final int PRECISION_MS = 1000;
    private static final int ROLL = TimerMessageStore.MAGIC_DEFAULT | TimerMessageStore.MAGIC_ROLL;
    private static final int DELETE = TimerMessageStore.MAGIC_DEFAULT | TimerMessageStore.MAGIC_DELETE;
    /** Apache writes whole seconds, of the clock and of the due time. */
    private static final long NOW_MS = FixedClockStore.START_MS / PRECISION_MS * PRECISION_MS;

    private final TimerLog log;
    private final TimerWheel wheel;
    private final List<Object> units = new ArrayList<>();

    private TimerGolden(Path folder) throws Exception {
        log = new TimerLog(folder.resolve("timerlog").toString(), FILE_BYTES);
        wheel = new TimerWheel(folder.resolve("timerwheel").toString(), SLOTS, PRECISION_MS);
    }

    static void write(Output out, Path scratch) throws Exception {
        Path folder = scratch.resolve("timers");
        TimerGolden timers = new TimerGolden(folder);
        timers.putAll();
        List<Object> slots = timers.slots();
        long end = timers.log.getMappedFileQueue().getMaxWrotePosition();
        timers.log.shutdown();
        timers.wheel.shutdown();
        for (Path file : Output.filesBelow(folder.resolve("timerlog"))) {
            out.bytes("timerlog/" + file, Files.readAllBytes(folder.resolve("timerlog").resolve(file)));
        }
        out.bytes("timerwheel.bin", Files.readAllBytes(folder.resolve("timerwheel")));
        out.json("timers.json", Output.map("file_bytes", FILE_BYTES, "slots_total", SLOTS, "precision_ms", PRECISION_MS,
            "now_ms", NOW_MS, "end", end, "units", timers.units, "slots", slots));
        writeCheckpoint(out, scratch.resolve("timercheck"));
    }

    private void putAll() {
        // Nineteen units fill a file of 1024 bytes, so these go into two.
        for (int i = 0; i < 16; i++) {
            put(TimerMessageStore.MAGIC_DEFAULT, NOW_MS + 1000L * (1 + i % 3), 300L * i, 300 + i);
        }
        put(ROLL, NOW_MS + 29_000, 6000, 400);
        put(DELETE, NOW_MS + 2000, 6400, 250);
        for (int i = 0; i < 6; i++) {
            put(TimerMessageStore.MAGIC_DEFAULT, NOW_MS + 1000L * (2 + 5 * (i % 2)), 5_000_000_000L + 300L * i, 310 + i);
        }
        put(DELETE, NOW_MS + 7000, 5_000_009_000L, 251);
    }

    private void put(int magic, long slotMs, long offset, int size) {
        Slot slot = wheel.getSlot(slotMs);
        boolean isDelete = (magic & TimerMessageStore.MAGIC_DELETE) != 0;
        int topicHash = "TopicGolden".hashCode();
        ByteBuffer unit = ByteBuffer.allocate(TimerLog.UNIT_SIZE);
        unit.putInt(TimerLog.UNIT_SIZE).putLong(slot.lastPos).putInt(magic).putLong(NOW_MS).putInt((int) (slotMs - NOW_MS));
        unit.putLong(offset).putInt(size).putInt(topicHash).putLong(0);
        long position = log.append(unit.array(), 0, TimerLog.UNIT_SIZE);
        wheel.putSlot(slotMs, slot.firstPos == -1 ? position : slot.firstPos, position, slot.num + (isDelete ? -1 : 1), slot.magic);
        units.add(Output.map("position", position, "previous", slot.lastPos, "magic", magic, "slot_ms", slotMs,
            "offset", offset, "size", size, "topic_hash", topicHash));
    }

    private List<Object> slots() {
        List<Object> slots = new ArrayList<>();
        for (long slotMs = NOW_MS; slotMs < NOW_MS + 2L * SLOTS * PRECISION_MS; slotMs += PRECISION_MS) {
            Slot slot = wheel.getSlot(slotMs);
            if (slot.timeMs != -1) {
                slots.add(Output.map("slot_ms", slot.timeMs, "index", wheel.getSlotIndex(slotMs), "first", slot.firstPos,
                    "last", slot.lastPos, "num", slot.num, "magic", slot.magic));
            }
        }
        return slots;
    }

    private static void writeCheckpoint(Output out, Path path) throws Exception {
        TimerCheckpoint checkpoint = new TimerCheckpoint(path.toString());
        checkpoint.setLastReadTimeMs(NOW_MS + 1000);
        checkpoint.setLastTimerLogFlushPos(5_000_000_001L);
        checkpoint.setLastTimerQueueOffset(6_000_000_002L);
        checkpoint.setMasterTimerQueueOffset(7_000_000_003L);
        checkpoint.getDataVersion().setStateVersion(4);
        checkpoint.getDataVersion().setTimestamp(NOW_MS + 5);
        checkpoint.getDataVersion().setCounter(new AtomicLong(6));
        ByteBuffer encoded = TimerCheckpoint.encode(checkpoint);
        byte[] body = new byte[encoded.remaining()];
        encoded.get(body);
        checkpoint.shutdown();
        out.bytes("timercheck.bin", Files.readAllBytes(path));
        out.json("timercheck.json", Output.map(
            "last_read_ms", checkpoint.getLastReadTimeMs(),
            "log_flushed", checkpoint.getLastTimerLogFlushPos(),
            "queue_offset", checkpoint.getLastTimerQueueOffset(),
            "master_queue_offset", checkpoint.getMasterTimerQueueOffset(),
            "state_version", checkpoint.getDataVersion().getStateVersion(),
            "version_ms", checkpoint.getDataVersion().getTimestamp(),
            "version_counter", checkpoint.getDataVersion().getCounter().get(),
            "body", Output.hex(body)));
    }
}
