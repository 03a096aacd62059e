/** Writes all golden data into the folder given as the first argument. */
package latermq.golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;

public final class Golden {
    private interface Part {
        void write(Output out, Path scratch) throws Exception;
    }

    public static void main(String[] args) throws Exception {
        Path data = Path.of(args[0]);
        Output.deleteTree(data);
        Files.createDirectories(data);
        Path scratch = Files.createTempDirectory("latermq-golden");
        int status = 1;
        try {
            List<Part> parts = List.of(CommitLogGolden::write, IndexFileGolden::write, CheckpointGolden::write,
                TimerGolden::write, ConfigGolden::write, FrameGolden::write, BatchGolden::write, TextGolden::write,
                IdGolden::write, PopGolden::write, AccessGolden::write,
                StoreDirectoryGolden::write);
            for (Part part : parts) {
                part.write(new Output(data), scratch);
            }
            status = 0;
        } catch (Exception failure) {
            failure.printStackTrace();
        } finally {
            Output.deleteTree(scratch);
            // Apache's services leave non-daemon threads behind, which would keep a failed run alive for ever.
            System.exit(status);
        }
    }
}
