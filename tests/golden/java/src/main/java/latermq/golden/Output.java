/** The folder that golden data goes to: binary files, and JSON that a Python test reads. */
package latermq.golden;

import com.alibaba.fastjson2.JSON;
import com.alibaba.fastjson2.JSONWriter;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;

final class Output {
    private final Path root;

    Output(Path root) {
        this.root = root;
    }

    void bytes(String name, byte[] content) throws IOException {
        Path file = root.resolve(name);
        Files.createDirectories(file.getParent());
        Files.write(file, content);
    }

    void json(String name, Object content) throws IOException {
        String text = JSON.toJSONString(content, JSONWriter.Feature.PrettyFormatWith2Space,
            JSONWriter.Feature.WriteMapNullValue, JSONWriter.Feature.WriteNonStringKeyAsString);
        bytes(name, (text + "\n").getBytes(StandardCharsets.UTF_8));
    }

    /** Apache's decoders leave an empty body null. */
    static String hex(byte[] bytes) {
        return bytes == null ? "" : HexFormat.of().formatHex(bytes);
    }

    /** A map that keeps the order of its arguments: name, value, name, value, ... */
    static Map<String, Object> map(Object... namesAndValues) {
        Map<String, Object> map = new LinkedHashMap<>();
        for (int i = 0; i < namesAndValues.length; i += 2) {
            map.put((String) namesAndValues[i], namesAndValues[i + 1]);
        }
        return map;
    }

    /** Every regular file below a folder, as paths relative to it, sorted. */
    static List<Path> filesBelow(Path folder) throws IOException {
        List<Path> files = new ArrayList<>();
        try (Stream<Path> walk = Files.walk(folder)) {
            walk.filter(Files::isRegularFile).map(folder::relativize).sorted().forEach(files::add);
        }
        return files;
    }

    static void deleteTree(Path folder) throws IOException {
        if (!Files.exists(folder)) {
            return;
        }
        List<Path> all;
        try (Stream<Path> walk = Files.walk(folder)) {
            all = walk.sorted(Comparator.reverseOrder()).toList();
        }
        for (Path path : all) {
            Files.delete(path);
        }
    }
}
