/*
Copyright The AlterShield Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package controlplane

import (
	"context"
	"fmt"
	"os"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// tokenLifetime is the lifetime of the tokens of KubeconfigFor.
const tokenLifetime = 24 * time.Hour

// KubeconfigFor writes a kubeconfig of a ServiceAccount, which has to exist, to path.
// Its token is valid for 24 hours.
func (c *ControlPlane) KubeconfigFor(ctx context.Context, namespace, serviceAccount, path string) error {
	seconds := int64(tokenLifetime / time.Second)
	token, err := c.client.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, serviceAccount, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: &seconds},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("token of ServiceAccount %s/%s: %w", namespace, serviceAccount, err)
	}
	return c.writeKubeconfig(path, serviceAccount, namespace, &clientcmdapi.AuthInfo{Token: token.Status.Token})
}

// kubeconfigForUser writes a kubeconfig of a user in groups to path. RBAC decides
// about the rights of the user.
func (c *ControlPlane) kubeconfigForUser(user string, groups []string, path string) error {
	cert, err := c.ca.IssueClient(user, groups, time.Now(), validity)
	if err != nil {
		return err
	}
	return c.writeKubeconfig(path, user, metav1.NamespaceDefault, &clientcmdapi.AuthInfo{
		ClientCertificateData: cert.CertPEM,
		ClientKeyData:         cert.KeyPEM,
	})
}

func (c *ControlPlane) writeKubeconfig(path, user, namespace string, auth *clientcmdapi.AuthInfo) error {
	const cluster = "altershield-local"
	config := clientcmdapi.NewConfig()
	config.Clusters[cluster] = &clientcmdapi.Cluster{Server: c.Endpoint(), CertificateAuthorityData: c.ca.CertPEM}
	config.AuthInfos[user] = auth
	config.Contexts[cluster] = &clientcmdapi.Context{Cluster: cluster, AuthInfo: user, Namespace: namespace}
	config.CurrentContext = cluster
	data, err := clientcmd.Write(*config)
	if err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o600)
}
