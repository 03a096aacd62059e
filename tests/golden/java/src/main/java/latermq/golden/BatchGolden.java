/** The body of a batch send. */
package latermq.golden;

import java.nio.ByteBuffer;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageDecoder;

final class BatchGolden {
    static void write(Output out, Path scratch) throws Exception {
        byte[] body = CommitLogGolden.batchBody();
        List<Object> messages = new ArrayList<>();
        for (Message message : MessageDecoder.decodeMessages(ByteBuffer.wrap(body))) {
            messages.add(Output.map("flag", message.getFlag(), "body_hex", Output.hex(message.getBody()),
                "tags", message.getTags(), "keys", message.getKeys()));
        }
        out.json("batch-body.json", Output.map("body_hex", Output.hex(body), "messages", messages));
    }
}
