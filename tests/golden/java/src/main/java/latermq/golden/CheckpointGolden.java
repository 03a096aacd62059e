/** The store's checkpoint with a different number in every field. */
package latermq.golden;

import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.rocketmq.store.StoreCheckpoint;

final class CheckpointGolden {
    static void write(Output out, Path scratch) throws Exception {
        Path path = scratch.resolve("checkpoint-fields").resolve("checkpoint");
        StoreCheckpoint checkpoint = new StoreCheckpoint(path.toString());
        checkpoint.setPhysicMsgTimestamp(FixedClockStore.START_MS + 1);
        checkpoint.setLogicsMsgTimestamp(FixedClockStore.START_MS + 2);
        checkpoint.setIndexMsgTimestamp(FixedClockStore.START_MS + 3);
        checkpoint.setMasterFlushedOffset(4_000_000_000L);
        checkpoint.setConfirmPhyOffset(5_000_000_000L);
        checkpoint.setLogicsPhysicalOffset(6_000_000_000L);
        checkpoint.shutdown();
        out.bytes("checkpoint.bin", Files.readAllBytes(path));
        out.json("checkpoint.json", Output.map(
            "physic_msg_ms", checkpoint.getPhysicMsgTimestamp(),
            "logics_msg_ms", checkpoint.getLogicsMsgTimestamp(),
            "index_msg_ms", checkpoint.getIndexMsgTimestamp(),
            "master_flushed_offset", checkpoint.getMasterFlushedOffset(),
            "confirm_offset", checkpoint.getConfirmPhyOffset(),
            "logics_physical_offset", checkpoint.getLogicsPhysicalOffset(),
            "min_ms", checkpoint.getMinTimestamp()));
    }
}
