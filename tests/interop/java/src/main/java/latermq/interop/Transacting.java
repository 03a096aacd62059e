package latermq.interop;

import com.alibaba.fastjson2.JSONArray;
import com.alibaba.fastjson2.JSONObject;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends one message in a transaction, and answers checks until as many as the caller waits for have come. */
final class Transacting {
    private static final int CHECK_TIMEOUT_S = 30;

    private Transacting() {
    }

    static JSONObject send(JSONObject arguments) throws Exception {
        LocalTransactionState local = state(arguments.getString("local"));
        JSONArray answers = arguments.getJSONArray("answers") == null ? new JSONArray() : arguments.getJSONArray("answers");
        LinkedBlockingQueue<JSONObject> checks = new LinkedBlockingQueue<>();
        TransactionMQProducer producer = new TransactionMQProducer(arguments.getString("group"), Security.hook(arguments));
        producer.setUseTLS(Security.usesTls(arguments));
        producer.setNamesrvAddr(arguments.getString("namesrv"));
        producer.setInstanceName("transaction-" + System.nanoTime());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return local;
            }

            @Override
            public synchronized LocalTransactionState checkLocalTransaction(MessageExt message) {
                JSONObject check = Messages.json(message);
                check.put("transaction_id", message.getTransactionId());
                int number = checks.size();
                checks.add(check);
                return number < answers.size() ? state(answers.getString(number)) : LocalTransactionState.UNKNOW;
            }
        });
        producer.start();
        try {
            var sent = producer.sendMessageInTransaction(Messages.build(arguments, 0), null);
            JSONObject result = Messages.json(sent);
            result.put("transaction_id", sent.getTransactionId());
            JSONArray received = new JSONArray();
            long deadline = System.nanoTime() + TimeUnit.SECONDS.toNanos(CHECK_TIMEOUT_S);
            while (checks.size() < answers.size() && System.nanoTime() < deadline) {
                Thread.sleep(20);
            }
            Thread.sleep(answers.isEmpty() ? 0 : 300); // the answer to a check is one-way
            received.addAll(checks);
            result.put("checks", received);
            return result;
        } finally {
            producer.shutdown();
        }
    }

    private static LocalTransactionState state(String name) {
        return name == null ? LocalTransactionState.COMMIT_MESSAGE : LocalTransactionState.valueOf(name);
    }
}
