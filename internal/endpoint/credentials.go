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

package endpoint

import (
	"cmp"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/url"
	"strings"

	"github.com/prometheus/common/config"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
)

// ErrCredentials is the error if a Secret of an endpoint cannot be used.
var ErrCredentials = errors.New("the Secrets of the endpoint cannot be used")

// configOf returns the configuration of the HTTP client, with the credentials of an endpoint, and the key that signs requests.
func configOf(
	ctx context.Context, secrets client.Reader, e *v1alpha1.DefenseEndpoint,
) (_ *config.HTTPClientConfig, signingKey []byte, _ error) {
	c := &config.HTTPClientConfig{EnableHTTP2: true}
	r := reader{ctx: ctx, secrets: secrets, namespace: e.Namespace}
	if u, err := url.Parse(e.Spec.URL); err == nil && e.Spec.Type == v1alpha1.EndpointAlertmanager {
		c.TLSConfig.ServerName = u.Hostname() // its addresses are called
	}
	if t := e.Spec.TLS; t != nil {
		c.TLSConfig.ServerName = cmp.Or(t.ServerName, c.TLSConfig.ServerName)
		if t.CASecretRef != nil {
			c.TLSConfig.CA = r.value("spec.tls.caSecretRef", t.CASecretRef, "ca.crt")
		}
		if t.CertSecretRef != nil {
			c.TLSConfig.Cert = r.value("spec.tls.certSecretRef", t.CertSecretRef, corev1.TLSCertKey)
			c.TLSConfig.Key = config.Secret(r.value("spec.tls.certSecretRef", t.CertSecretRef, corev1.TLSPrivateKeyKey))
		}
	}
	if a := e.Spec.Auth; a != nil && a.SecretRef != nil {
		signingKey = r.login(a.SecretRef, c, e.Spec.Type == v1alpha1.EndpointHTTP)
	}
	if a := e.Spec.Auth; a != nil && a.OAuth2 != nil {
		c.OAuth2 = &config.OAuth2{
			ClientID:     r.value("spec.auth.oauth2.secretRef", &a.OAuth2.SecretRef, "clientID"),
			ClientSecret: config.Secret(r.value("spec.auth.oauth2.secretRef", &a.OAuth2.SecretRef, "clientSecret")),
			TokenURL:     a.OAuth2.TokenURL, Scopes: a.OAuth2.Scopes, TLSConfig: config.TLSConfig{CA: c.TLSConfig.CA},
		}
	}
	if len(e.Spec.Headers) > 0 {
		c.HTTPHeaders = &config.Headers{Headers: map[string]config.Header{}}
		for name, value := range e.Spec.Headers {
			c.HTTPHeaders.Headers[name] = config.Header{Values: []string{string(value)}}
		}
	}
	return c, signingKey, r.err
}

// reader reads Secrets of one namespace, each by its name. It keeps the first error.
type reader struct {
	ctx       context.Context //nolint:containedctx // of one call of configOf
	secrets   client.Reader
	namespace string
	err       error
}

// login reads a token, or a user and a password, and a key for signatures.
func (r *reader) login(ref *v1alpha1.SecretReference, c *config.HTTPClientConfig, signs bool) (signingKey []byte) {
	const field = "spec.auth.secretRef"
	secret := r.read(field, ref)
	if secret == nil {
		return nil
	}
	if text, ok := secret.Data["signingKey"]; ok && signs {
		var err error
		signingKey, err = base64.StdEncoding.DecodeString(strings.TrimPrefix(strings.TrimSpace(string(text)), "whsec_"))
		if err != nil || len(signingKey) < 24 || len(signingKey) > 64 {
			r.fail("%s: the key signingKey of Secret %s is not usable: it must be 24 to 64 bytes in base64", field, ref.Name)
		}
	}
	if token, ok := secret.Data["token"]; ok && len(token) > 0 {
		c.Authorization = &config.Authorization{Type: "Bearer", Credentials: config.Secret(strings.TrimSpace(string(token)))}
		return signingKey
	}
	user := string(secret.Data[corev1.BasicAuthUsernameKey])
	switch {
	case user != "":
		c.BasicAuth = &config.BasicAuth{Username: user, Password: config.Secret(secret.Data[corev1.BasicAuthPasswordKey])}
	case signingKey == nil:
		r.fail("%s: Secret %s has neither the key token, nor the keys username and password (nor signingKey, at type HTTP): add one of them",
			field, ref.Name)
	}
	return signingKey
}

func (r *reader) value(field string, ref *v1alpha1.SecretReference, key string) string {
	secret := r.read(field, ref)
	if secret == nil {
		return ""
	}
	if len(secret.Data[key]) == 0 {
		r.fail("%s: Secret %s has no key %s: add it", field, ref.Name, key)
	}
	return string(secret.Data[key])
}

// read reads a Secret. Only a Secret with the label may be used: who may write endpoints may
// otherwise have the operator send any Secret of its namespace to any address.
func (r *reader) read(field string, ref *v1alpha1.SecretReference) *corev1.Secret {
	if r.err != nil {
		return nil
	}
	var secret corev1.Secret
	err := r.secrets.Get(r.ctx, types.NamespacedName{Namespace: r.namespace, Name: ref.Name}, &secret)
	switch {
	case apierrors.IsNotFound(err), err == nil && secret.Labels[v1alpha1.EndpointSecretLabel] != "true":
		// The same sentence: it does not say which Secrets exist.
		r.fail("%s: namespace %s has no Secret %s with the label %s=true: create it, or label it",
			field, r.namespace, ref.Name, v1alpha1.EndpointSecretLabel)
	case apierrors.IsForbidden(err):
		r.fail("%s: the operator may not get Secret %s: give it that right, see config/rbac/role.yaml", field, ref.Name)
	case err != nil:
		r.err = fmt.Errorf("get secret %s/%s: %w", r.namespace, ref.Name, err)
	default:
		return &secret
	}
	return nil
}

func (r *reader) fail(format string, args ...any) {
	r.err = fmt.Errorf("%w: %s", ErrCredentials, fmt.Sprintf(format, args...))
}
