// SPDX-License-Identifier: Apache-2.0
import java.lang.instrument.Instrumentation;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.metrics.KafkaMetric;
import org.apache.kafka.common.metrics.MetricsReporter;
import org.apache.kafka.server.telemetry.ClientTelemetryContext;
import org.apache.kafka.server.telemetry.ClientTelemetryExporter;
import org.apache.kafka.server.telemetry.ClientTelemetryExporterProvider;
import org.apache.kafka.server.telemetry.ClientTelemetryPayload;

/** Writes the telemetry that a broker gets into a file: a line for each push. It comes as an agent, onto the class path. */
public class TelemetryReceiver implements MetricsReporter, ClientTelemetryExporterProvider {
    private static Path file;

    public static void premain(String path, Instrumentation instrumentation) {
        file = Path.of(path);
    }

    @Override
    public ClientTelemetryExporter clientTelemetryExporter() {
        return TelemetryReceiver::export;
    }

    private static synchronized void export(ClientTelemetryContext context, ClientTelemetryPayload payload) {
        ByteBuffer data = payload.data().duplicate();
        byte[] bytes = new byte[data.remaining()];
        data.get(bytes);
        String line = String.join(" ",
            payload.clientInstanceId().toString(),
            Boolean.toString(payload.isTerminating()),
            payload.contentType(),
            context.authorizableRequestContext().clientId(),
            "=" + Base64.getEncoder().encodeToString(bytes)) + "\n";
        try {
            Files.write(file, line.getBytes(StandardCharsets.UTF_8), StandardOpenOption.CREATE, StandardOpenOption.APPEND);
        } catch (java.io.IOException error) {
            throw new java.io.UncheckedIOException(error);
        }
    }

    @Override public void init(List<KafkaMetric> metrics) { }
    @Override public void metricChange(KafkaMetric metric) { }
    @Override public void metricRemoval(KafkaMetric metric) { }
    @Override public void close() { }
    @Override public void configure(Map<String, ?> configs) { }
}
