import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;
import javax.security.auth.x500.X500Principal;

/** Reads names in DER, one a line, and writes each as Kafka reads it from a certificate. All in hex. */
public class DistinguishedNames {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in, StandardCharsets.UTF_8);
        while (lines.hasNextLine()) {
            byte[] encoded = HexFormat.of().parseHex(lines.nextLine());
            byte[] text = new X500Principal(encoded).getName().getBytes(StandardCharsets.UTF_8);
            System.out.println(HexFormat.of().formatHex(text));
        }
    }
}
