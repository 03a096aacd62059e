package latermq;

import io.delta.storage.S3SingleDriverLogStore;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import java.util.Iterator;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;

/**
 * Delta commits on S3 that no other process can overwrite: each is created with If-None-Match.
 *
 * Delta's own store for S3 looks for the file, then writes it without a condition. Two drivers can therefore write the
 * same version, and the later one replaces the commit of the other. Its store for Google's cloud relies on
 * fs.create(path, false), which Hadoop's S3A does not make conditional either.
 *
 * Spark's own compiler, Janino, compiles this file when the jars for S3 are fetched. Janino knows no lambdas.
 */
public class ConditionalLogStore extends S3SingleDriverLogStore {

    /** The option of Hadoop's createFile() that makes S3A send If-None-Match. S3A refuses it where it is disabled. */
    private static final String CONDITIONAL = "fs.option.create.conditional.overwrite";

    /** What S3A throws for a reply of 412. By name, because Hadoop has it in another jar than its file systems. */
    private static final String CONDITION_FAILED = "org.apache.hadoop.fs.s3a.RemoteFileChangedException";

    public ConditionalLogStore(Configuration settings) {
        super(settings);
    }

    public void write(Path path, Iterator actions, Boolean overwrite, Configuration settings) throws IOException {
        if (overwrite.booleanValue()) {
            super.write(path, actions, overwrite, settings);
            return;
        }
        // All of it before the first byte is sent: a stream that is closed after a failure publishes what it has.
        ByteArrayOutputStream lines = new ByteArrayOutputStream();
        while (actions.hasNext()) {
            lines.write(((String) actions.next()).getBytes("UTF-8"));
            lines.write('\n');
        }
        byte[] commit = lines.toByteArray();
        FileSystem files = path.getFileSystem(settings);
        try {
            create(files, path, commit);
        } catch (PathIOException refused) {
            if (!isConditionFailure(refused)) {
                throw refused;
            }
            // S3A repeats a request whose reply was lost. If the first one had arrived, the repetition is refused, but
            // the commit is ours. Each commit holds a random id, so no other one has the same bytes.
            if (!Arrays.equals(commit, read(files, path, commit.length))) {
                throw new FileAlreadyExistsException(path.toString());
            }
        }
    }

    private static void create(FileSystem files, Path path, byte[] commit) throws IOException {
        FSDataOutputStreamBuilder builder = files.createFile(path);
        builder.overwrite(false);
        builder.must(CONDITIONAL, true);
        FSDataOutputStream stream = (FSDataOutputStream) builder.build();
        stream.write(commit);
        stream.close();
    }

    private static boolean isConditionFailure(Throwable error) {
        for (Throwable cause = error; cause != null; cause = cause.getCause()) {
            if (CONDITION_FAILED.equals(cause.getClass().getName())) {
                return true;
            }
        }
        return false;
    }

    /** The file, or as much of it as shows that it is longer than `size`. */
    private static byte[] read(FileSystem files, Path path, int size) throws IOException {
        FSDataInputStream stream = files.open(path);
        try {
            byte[] found = new byte[size + 1];
            int length = 0;
            while (length <= size) {
                int count = stream.read(found, length, size + 1 - length);
                if (count < 0) {
                    break;
                }
                length += count;
            }
            return Arrays.copyOf(found, length);
        } finally {
            stream.close();
        }
    }
}
