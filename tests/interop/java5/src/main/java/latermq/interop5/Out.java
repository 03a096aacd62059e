package latermq.interop5;

import com.alibaba.fastjson2.JSONObject;
import com.alibaba.fastjson2.JSONWriter;
import java.io.FileDescriptor;
import java.io.FileOutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Standard output as JSON lines. Nothing else may write there, so System.out is sent to standard error. */
final class Out {
    private static final PrintStream LINES =
        new PrintStream(new FileOutputStream(FileDescriptor.out), false, StandardCharsets.UTF_8);

    private Out() {
    }

    static void claim() {
        System.setOut(System.err);
    }

    static synchronized void line(JSONObject object) {
        LINES.println(object.toString(JSONWriter.Feature.WriteMapNullValue));
        LINES.flush();
    }
}
