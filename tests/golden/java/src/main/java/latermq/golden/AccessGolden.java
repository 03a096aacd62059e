/** The RocksDB folders in which a broker keeps its users and ACLs, written by its own metadata managers. */
package latermq.golden;

import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import org.apache.rocketmq.auth.authentication.enums.UserStatus;
import org.apache.rocketmq.auth.authentication.enums.UserType;
import org.apache.rocketmq.auth.authentication.factory.AuthenticationFactory;
import org.apache.rocketmq.auth.authentication.manager.AuthenticationMetadataManager;
import org.apache.rocketmq.auth.authentication.model.User;
import org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider;
import org.apache.rocketmq.auth.authorization.enums.Decision;
import org.apache.rocketmq.auth.authorization.enums.PolicyType;
import org.apache.rocketmq.auth.authorization.factory.AuthorizationFactory;
import org.apache.rocketmq.auth.authorization.manager.AuthorizationMetadataManager;
import org.apache.rocketmq.auth.authorization.model.Acl;
import org.apache.rocketmq.auth.authorization.model.Environment;
import org.apache.rocketmq.auth.authorization.model.Policy;
import org.apache.rocketmq.auth.authorization.model.PolicyEntry;
import org.apache.rocketmq.auth.authorization.model.Resource;
import org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider;
import org.apache.rocketmq.auth.config.AuthConfig;
import org.apache.rocketmq.common.action.Action;

final class AccessGolden {
    static void write(Output out, Path scratch) throws Exception {
        Path root = scratch.resolve("apache-access");
        Path config = Files.createDirectories(root.resolve("config"));
        AuthConfig settings = new AuthConfig();
        settings.setConfigName("golden");
        settings.setAuthConfigPath(config.toString());
        settings.setAuthenticationMetadataProvider(LocalAuthenticationMetadataProvider.class.getName());
        settings.setAuthorizationMetadataProvider(LocalAuthorizationMetadataProvider.class.getName());
        AuthenticationMetadataManager users = AuthenticationFactory.getMetadataManager(settings);
        AuthorizationMetadataManager acls = AuthorizationFactory.getMetadataManager(settings);
        users.createUser(User.of("root", "r00t", UserType.SUPER)).join();
        users.createUser(User.of("alice", "s3cret", UserType.NORMAL)).join();
        users.createUser(User.of("bob", "b\u00f6b", UserType.NORMAL)).join();
        User disabled = User.of("bob", "b\u00f6b", UserType.NORMAL);
        disabled.setUserStatus(UserStatus.DISABLE);
        users.updateUser(disabled).join();
        acls.createAcl(Acl.of(User.of("alice"), List.of(
            Policy.of(PolicyType.CUSTOM, List.of(
                entry("Topic:ord*", Decision.ALLOW, List.of("10.0.0.0/8", "192.168.1.7"), Action.PUB, Action.SUB),
                entry("Group:readers", Decision.ALLOW, null, Action.SUB),
                entry("Topic:orders-secret", Decision.DENY, null, Action.ALL),
                entry("Cluster:DefaultCluster", Decision.ALLOW, null, Action.GET))),
            Policy.of(PolicyType.DEFAULT, List.of(
                entry("Topic:*", Decision.DENY, null, Action.ALL),
                entry("*", Decision.ALLOW, null, Action.LIST)))))).join();
        users.shutdown();
        acls.shutdown();
        out.bytes("apache-access.tar.gz", StoreDirectoryGolden.archive(root));
    }

    private static PolicyEntry entry(String resource, Decision decision, List<String> sources, Action... actions) {
        Environment environment = sources == null ? null : Environment.of(sources);
        return PolicyEntry.of(Resource.of(resource), List.of(actions), environment, decision);
    }
}
