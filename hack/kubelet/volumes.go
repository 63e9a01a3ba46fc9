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

package kubelet

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// serviceAccountToken is a token and when it is to be replaced.
type serviceAccountToken struct {
	token string
	renew time.Time
}

// content reads what a volume contains now, by path.
func (p *pod) content(ctx context.Context, spec *corev1.Pod, v *corev1.Volume) (map[string][]byte, error) {
	switch {
	case v.EmptyDir != nil:
		return nil, nil
	case v.Projected != nil:
		all := map[string][]byte{}
		for i := range v.Projected.Sources {
			if err := p.project(ctx, spec, &v.Projected.Sources[i], all); err != nil {
				return nil, err
			}
		}
		return all, nil
	case v.Secret != nil:
		all := map[string][]byte{}
		return all, p.project(ctx, spec, &corev1.VolumeProjection{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: v.Secret.SecretName}, Items: v.Secret.Items, Optional: v.Secret.Optional,
		}}, all)
	case v.ConfigMap != nil:
		all := map[string][]byte{}
		return all, p.project(ctx, spec, &corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: v.ConfigMap.LocalObjectReference, Items: v.ConfigMap.Items, Optional: v.ConfigMap.Optional,
		}}, all)
	case v.DownwardAPI != nil:
		all := map[string][]byte{}
		return all, p.project(ctx, spec, &corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: v.DownwardAPI.Items}}, all)
	default:
		return nil, errors.New("this kind of volume cannot be had here")
	}
}

func (p *pod) project(ctx context.Context, spec *corev1.Pod, source *corev1.VolumeProjection, into map[string][]byte) error {
	switch {
	case source.ServiceAccountToken != nil:
		token, err := p.token(ctx, spec, source.ServiceAccountToken)
		into[source.ServiceAccountToken.Path] = []byte(token)
		return err
	case source.Secret != nil:
		found, err := p.k.client.CoreV1().Secrets(spec.Namespace).Get(ctx, source.Secret.Name, metav1.GetOptions{})
		if err != nil {
			return missing(err, source.Secret.Optional)
		}
		return pick(found.Data, source.Secret.Items, ptr.Deref(source.Secret.Optional, false), into)
	case source.ConfigMap != nil:
		found, err := p.k.client.CoreV1().ConfigMaps(spec.Namespace).Get(ctx, source.ConfigMap.Name, metav1.GetOptions{})
		if err != nil {
			return missing(err, source.ConfigMap.Optional)
		}
		data := map[string][]byte{}
		for k, v := range found.BinaryData {
			data[k] = v
		}
		for k, v := range found.Data {
			data[k] = []byte(v)
		}
		return pick(data, source.ConfigMap.Items, ptr.Deref(source.ConfigMap.Optional, false), into)
	case source.DownwardAPI != nil:
		for _, item := range source.DownwardAPI.Items {
			if item.FieldRef == nil {
				return fmt.Errorf("the source of %s cannot be read here", item.Path)
			}
			value, err := fieldOf(spec, item.FieldRef.FieldPath, p.ip)
			if err != nil {
				return err
			}
			into[item.Path] = []byte(value)
		}
		return nil
	default:
		return errors.New("this kind of projection cannot be had here")
	}
}

func missing(err error, optional *bool) error {
	if apierrors.IsNotFound(err) && ptr.Deref(optional, false) {
		return nil
	}
	return err
}

// pick takes the items that are wanted of what there is; all if none is named.
func pick(data map[string][]byte, items []corev1.KeyToPath, optional bool, into map[string][]byte) error {
	if len(items) == 0 {
		for k, v := range data {
			into[k] = v
		}
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok && !optional {
			return fmt.Errorf("there is no key %s", item.Key)
		}
		if ok {
			into[item.Path] = value
		}
	}
	return nil
}

// token is one of the pod's service account, bound to the pod, renewed at four
// fifths of its life.
func (p *pod) token(ctx context.Context, spec *corev1.Pod, source *corev1.ServiceAccountTokenProjection) (string, error) {
	if t, ok := p.tokens[source.Path]; ok && time.Now().Before(t.renew) {
		return t.token, nil
	}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: source.ExpirationSeconds,
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: spec.Name, UID: spec.UID},
	}}
	if source.Audience != "" {
		request.Spec.Audiences = []string{source.Audience}
	}
	now := time.Now()
	answer, err := p.k.client.CoreV1().ServiceAccounts(spec.Namespace).CreateToken(ctx, spec.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", err
	}
	p.tokens[source.Path] = serviceAccountToken{answer.Status.Token, now.Add(answer.Status.ExpirationTimestamp.Sub(now) * 4 / 5)}
	return answer.Status.Token, nil
}

// The files of a volume are symbolic links into ..data, itself one to a directory
// with the content; so all of them change in one moment.
const dataLink = "..data"

// syncVolumes writes the volumes of a pod, as far as they changed.
func (p *pod) syncVolumes(ctx context.Context, spec *corev1.Pod) error {
	for i := range spec.Spec.Volumes {
		v := &spec.Spec.Volumes[i]
		content, err := p.content(ctx, spec, v)
		if err == nil {
			err = writeVolume(p.volumeDir(v.Name), content)
		}
		if err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func (p *pod) volumeDir(name string) string { return filepath.Join(p.dir, "volumes", name) }

func writeVolume(dir string, content map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o750); err != nil || content == nil {
		return err
	}
	link := filepath.Join(dir, dataLink)
	before, err := os.Readlink(link)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if before != "" && holds(filepath.Join(dir, before), content) {
		return nil
	}
	now := ".." + strconv.FormatInt(time.Now().UnixNano(), 36)
	for path, data := range content {
		to := filepath.Join(dir, now, path)
		if err := os.MkdirAll(filepath.Dir(to), 0o750); err != nil {
			return err
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, now), 0o750); err != nil {
		return err
	}
	if err := os.Symlink(now, link+"_tmp"); err != nil {
		return err
	}
	if err := os.Rename(link+"_tmp", link); err != nil {
		return err
	}
	for path := range content {
		top, _, _ := strings.Cut(path, "/")
		if err := os.Symlink(filepath.Join(dataLink, top), filepath.Join(dir, top)); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range entries { // links to what is gone
		if _, err := os.Stat(filepath.Join(dir, e.Name())); errors.Is(err, os.ErrNotExist) {
			_ = os.Remove(filepath.Join(dir, e.Name()))
		}
	}
	if before == "" {
		return nil
	}
	return os.RemoveAll(filepath.Join(dir, before))
}

// holds says whether a directory has exactly this content.
func holds(dir string, content map[string][]byte) bool {
	n := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		n++
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(path)
		if want, ok := content[name]; err == nil && (!ok || !bytes.Equal(data, want)) {
			return errors.New("changed")
		}
		return err
	})
	return err == nil && n == len(content)
}

// mounts are what a container finds in its root file system.
func (p *pod) mounts(spec *corev1.Pod, c *corev1.Container, services []*corev1.Service) []mount {
	all := []mount{
		{From: "/proc", To: "/proc"},
		{From: "/dev", To: "/dev"},
		{To: "/etc/hosts", File: hostsFile(p.ip, spec.Name, services)},
		{To: "/etc/hostname", File: spec.Name + "\n"},
	}
	for to, from := range p.k.image.Files {
		all = append(all, mount{From: from, To: to, ReadOnly: true})
	}
	writable := map[string]bool{}
	for _, v := range spec.Spec.Volumes {
		writable[v.Name] = v.EmptyDir != nil
	}
	for _, m := range c.VolumeMounts {
		all = append(all, mount{From: p.volumeDir(m.Name), To: m.MountPath, ReadOnly: m.ReadOnly || !writable[m.Name]})
	}
	return all
}
