package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.common.message.Message;

/**
 * When a message shall arrive, said in one of the ways {@code sec}, {@code ms}, {@code deliver} and {@code start}: in
 * {@code in_ms} from now, or with {@code value} as the way's own number, whatever it is.
 */
final class Timing {
    /** What clients of cloud vendors set; the open source client has no method for it. */
    private static final String START_DELIVER_TIME = "__STARTDELIVERTIME";
    /** Travels with the message: the earliest millisecond at which it may be there, by the sender's clock. */
    private static final String NOT_BEFORE = "not_before_ms";

    private Timing() {
    }

    static void set(Message message, JSONObject timer) {
        String way = timer.getString("way");
        boolean given = timer.containsKey("value");
        long inMs = timer.getLongValue("in_ms");
        long atMs = System.currentTimeMillis() + inMs;
        if (!given) {
            message.putUserProperty(NOT_BEFORE, Long.toString(atMs));
        }
        switch (way) {
            case "sec":
                message.setDelayTimeSec(given ? timer.getLongValue("value") : inMs / 1000);
                break;
            case "ms":
                message.setDelayTimeMs(given ? timer.getLongValue("value") : inMs);
                break;
            case "deliver":
                message.setDeliverTimeMs(given ? timer.getLongValue("value") : atMs);
                break;
            case "start":
                message.putUserProperty(START_DELIVER_TIME,
                    Long.toString(given ? timer.getLongValue("value") : atMs));
                break;
            default:
                throw new IllegalArgumentException("no way " + way);
        }
    }
}
