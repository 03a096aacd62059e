package latermq.interop;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptors;
import io.grpc.ManagedChannel;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.MethodDescriptor.MethodType;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.netty.shaded.io.grpc.netty.GrpcSslContexts;
import io.grpc.netty.shaded.io.grpc.netty.NettyChannelBuilder;
import io.grpc.stub.ClientCalls;
import io.grpc.stub.MetadataUtils;
import io.grpc.stub.StreamObserver;
import java.io.ByteArrayInputStream;
import java.io.File;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.concurrent.ArrayBlockingQueue;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicReference;

/**
 * Calls the methods of tests/support/http2_server.py with grpc-java. Messages are plain bytes, so no generated code is
 * needed.
 *
 * <p>Check ADDRESS [CERTIFICATE]: makes calls of all kinds, with TLS if there is a certificate, and prints "ok".
 */
public final class Check {
    private static final MethodDescriptor.Marshaller<byte[]> BYTES = new MethodDescriptor.Marshaller<byte[]>() {
        @Override
        public InputStream stream(byte[] message) {
            return new ByteArrayInputStream(message);
        }

        @Override
        public byte[] parse(InputStream stream) {
            try {
                return stream.readAllBytes();
            } catch (IOException failure) {
                throw new UncheckedIOException(failure);
            }
        }
    };
    private static final Metadata.Key<String> COUNT = Metadata.Key.of("x-count", Metadata.ASCII_STRING_MARSHALLER);
    private static final byte[] END = new byte[0];

    private final Channel channel;
    private final CallOptions minute = CallOptions.DEFAULT.withDeadlineAfter(1, TimeUnit.MINUTES);

    private Check(Channel channel) {
        this.channel = channel;
    }

    public static void main(String[] arguments) throws Exception {
        NettyChannelBuilder builder =
            NettyChannelBuilder.forTarget(arguments[0]).maxInboundMessageSize(Integer.MAX_VALUE);
        if (arguments.length > 1) {
            builder.sslContext(GrpcSslContexts.forClient().trustManager(new File(arguments[1])).build());
            builder.overrideAuthority("localhost");
        } else {
            builder.usePlaintext();
        }
        ManagedChannel channel = builder.build();
        Check check = new Check(channel);
        check.unaryCalls();
        check.statuses();
        check.serverStream();
        check.chat();
        check.flowControl();
        check.expect(text(check.unary("Echo", bytes("end"))).equals("end"), "the connection still works");
        channel.shutdown();
        check.expect(channel.awaitTermination(10, TimeUnit.SECONDS), "the channel ends");
        System.out.println("ok");
    }

    private void unaryCalls() throws Exception {
        for (int size : new int[] {0, 1, 16379, 16380, 100000, 4 << 20}) {
            byte[] message = new byte[size];
            Arrays.fill(message, (byte) 'x');
            expect(Arrays.equals(unary("Echo", message), message), "echo of " + size + " bytes");
            byte[] answer = ClientCalls.blockingUnaryCall(
                channel, method("Echo", MethodType.UNARY), minute.withCompression("gzip"), message);
            expect(Arrays.equals(answer, message), "echo of " + size + " bytes with gzip");
        }
        List<Future<byte[]>> answers = new ArrayList<>();
        for (int number = 0; number < 2000; number++) {
            ClientCall<byte[], byte[]> call = channel.newCall(method("Later", MethodType.UNARY), minute);
            answers.add(ClientCalls.futureUnaryCall(call, bytes("" + number)));
        }
        for (int number = 0; number < 2000; number++) {
            expect(text(answers.get(number).get()).equals("" + number), "call " + number);
        }
    }

    private void statuses() throws Exception {
        Status failed = failure("Fail", bytes("9"), minute);
        expect(failed.getCode() == Status.Code.FAILED_PRECONDITION, failed.toString());
        expect("as asked: ü%\n.".equals(failed.getDescription()), failed.toString());
        Status unknown = failure("Unknown", END, minute);
        expect(unknown.getCode() == Status.Code.UNIMPLEMENTED, unknown.toString());
        Status late = failure("Wait", END, CallOptions.DEFAULT.withDeadlineAfter(200, TimeUnit.MILLISECONDS));
        expect(late.getCode() == Status.Code.DEADLINE_EXCEEDED, late.toString());
        Future<byte[]> cancelled = ClientCalls.futureUnaryCall(
            channel.newCall(method("Wait", MethodType.UNARY), minute), END);
        cancelled.cancel(true);
    }

    private void serverStream() {
        AtomicReference<Metadata> trailers = new AtomicReference<>();
        Channel watched = ClientInterceptors.intercept(
            channel, MetadataUtils.newCaptureMetadataInterceptor(new AtomicReference<>(), trailers));
        Iterator<byte[]> answers = ClientCalls.blockingServerStreamingCall(
            watched, method("Count", MethodType.SERVER_STREAMING), minute, bytes("3000"));
        for (int number = 0; number < 3000; number++) {
            expect(text(answers.next()).equals("" + number), "message " + number);
        }
        expect(!answers.hasNext(), "the stream ends");
        expect("3000".equals(trailers.get().get(COUNT)), "trailers " + trailers.get());
    }

    private void chat() throws Exception {
        BlockingQueue<byte[]> answers = new ArrayBlockingQueue<>(16);
        StreamObserver<byte[]> requests = ClientCalls.asyncBidiStreamingCall(
            channel.newCall(method("Chat", MethodType.BIDI_STREAMING), minute), into(answers));
        for (int number = 0; number < 200; number++) {
            byte[] message = new byte[number * 500];
            Arrays.fill(message, (byte) number);
            requests.onNext(message);
            byte[] answer = answers.poll(30, TimeUnit.SECONDS);
            expect(Arrays.equals(answer, message), "chat message " + number);
        }
        requests.onCompleted();
        expect(answers.poll(30, TimeUnit.SECONDS) == END, "the chat ends");
    }

    /** 30 MB, many times the windows, to a reader that pauses. Then a reader that leaves. */
    private void flowControl() throws Exception {
        Iterator<byte[]> answers = ClientCalls.blockingServerStreamingCall(
            channel, method("Flood", MethodType.SERVER_STREAMING), minute, bytes("3000"));
        long size = 0;
        while (answers.hasNext()) {
            if (size % 5_000_000 == 0) {
                Thread.sleep(20);
            }
            size += answers.next().length;
        }
        expect(size == 30_000_000, size + " bytes arrived");
        ClientCall<byte[], byte[]> abandoned = channel.newCall(method("Flood", MethodType.SERVER_STREAMING), minute);
        BlockingQueue<byte[]> first = new ArrayBlockingQueue<>(100_000);
        ClientCalls.asyncServerStreamingCall(abandoned, bytes("1000000"), into(first));
        first.poll(30, TimeUnit.SECONDS);
        abandoned.cancel("enough", null);
    }

    private static StreamObserver<byte[]> into(BlockingQueue<byte[]> answers) {
        return new StreamObserver<byte[]>() {
            @Override
            public void onNext(byte[] answer) {
                answers.add(answer);
            }

            @Override
            public void onError(Throwable failure) {
                answers.offer(bytes(failure.toString()));
            }

            @Override
            public void onCompleted() {
                answers.add(END);
            }
        };
    }

    private byte[] unary(String name, byte[] message) {
        return ClientCalls.blockingUnaryCall(channel, method(name, MethodType.UNARY), minute, message);
    }

    private Status failure(String name, byte[] message, CallOptions options) {
        try {
            ClientCalls.blockingUnaryCall(channel, method(name, MethodType.UNARY), options, message);
        } catch (StatusRuntimeException failure) {
            return failure.getStatus();
        }
        return Status.OK;
    }

    private static MethodDescriptor<byte[], byte[]> method(String name, MethodType type) {
        return MethodDescriptor.newBuilder(BYTES, BYTES)
            .setFullMethodName("test.Service/" + name)
            .setType(type)
            .build();
    }

    private void expect(boolean condition, String what) {
        if (!condition) {
            throw new AssertionError(what);
        }
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    private static String text(byte[] bytes) {
        return new String(bytes, StandardCharsets.UTF_8);
    }
}
