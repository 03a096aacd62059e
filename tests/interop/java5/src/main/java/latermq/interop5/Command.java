package latermq.interop5;

import com.alibaba.fastjson2.JSONObject;

/** One thing the program can be asked to do: named values in, named values out. */
@FunctionalInterface
interface Command {
    JSONObject run(JSONObject arguments) throws Exception;
}
