package latermq.interop;

import com.alibaba.fastjson2.JSONObject;
import org.apache.rocketmq.client.producer.LocalTransactionState;
import org.apache.rocketmq.client.producer.TransactionListener;
import org.apache.rocketmq.client.producer.TransactionMQProducer;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageExt;

/** Sends one message in a transaction that commits at once. */
final class Transacting {
    private Transacting() {
    }

    static JSONObject send(JSONObject arguments) throws Exception {
        TransactionMQProducer producer = new TransactionMQProducer(arguments.getString("group"));
        producer.setNamesrvAddr(arguments.getString("namesrv"));
        producer.setInstanceName("transaction-" + System.nanoTime());
        producer.setTransactionListener(new TransactionListener() {
            @Override
            public LocalTransactionState executeLocalTransaction(Message message, Object argument) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }

            @Override
            public LocalTransactionState checkLocalTransaction(MessageExt message) {
                return LocalTransactionState.COMMIT_MESSAGE;
            }
        });
        producer.start();
        try {
            return Messages.json(producer.sendMessageInTransaction(Messages.build(arguments, 0), null));
        } finally {
            producer.shutdown();
        }
    }
}
