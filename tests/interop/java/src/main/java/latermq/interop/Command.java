package latermq.interop;

import com.alibaba.fastjson2.JSONObject;

/** One thing a program can be asked to do: named values in, named values out. */
@FunctionalInterface
interface Command {
    JSONObject run(JSONObject arguments) throws Exception;
}
