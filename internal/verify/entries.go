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

package verify

import (
	"context"
	"fmt"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/traas-stack/altershield-operator/apis/app.ops.cloud.alipay.com/v1alpha1"
	"github.com/traas-stack/altershield-operator/internal/metrics"
	"github.com/traas-stack/altershield-operator/internal/server"
	"github.com/traas-stack/altershield-operator/internal/workload"
)

// refuse returns the answer to a call about an entry that does not, or may not, belong to the record; nil if it
// does. The server does not check the order of an entry. So if two records name one entry, no call is made for
// either, unless this process started the entry. The call is retried: a user may remove a copied id.
func (p *AlterShield) refuse(ctx context.Context, call server.Call, record client.Object, entry string) (*server.Answer, error) {
	if call != server.CallFinish && call != server.CallPollPre && call != server.CallPollPost {
		return nil, nil
	}
	others := []string(nil)
	uid, known := p.memory.entries.Get(entry)
	switch {
	case uid == record.GetUID():
		return nil, nil
	case known:
		others = []string{fmt.Sprint(uid)}
	default:
		var err error
		if others, err = p.others(ctx, record.GetUID(), entry); err != nil || len(others) == 0 {
			return nil, err
		}
	}
	metrics.ForeignID("node")
	log.FromContext(ctx).Info("made no call for the order entry in the status of a record: it belongs, or may belong, to another record",
		"orderEntry", entry, "others", others, "startedForAnother", known)
	return &server.Answer{Kind: server.AnswerRetry, Message: fmt.Sprintf("order entry %s is in the status of another record, too", entry)}, nil
}

// others returns the other records that name an entry.
func (p *AlterShield) others(ctx context.Context, uid types.UID, entry string) (others []string, err error) {
	var batches v1alpha1.ChangePodList
	var releases v1alpha1.ChangeWorkloadList
	for _, list := range []client.ObjectList{&batches, &releases} {
		if err := p.view.Cached.List(ctx, list, client.MatchingFields{workload.IndexByNode: entry}, client.UnsafeDisableDeepCopy); err != nil {
			return nil, fmt.Errorf("find the records of order entry %s: %w", entry, err)
		}
	}
	note := func(o client.Object) {
		if o.GetUID() != uid {
			others = append(others, client.ObjectKeyFromObject(o).String())
		}
	}
	for i := range batches.Items {
		note(&batches.Items[i])
	}
	for i := range releases.Items {
		note(&releases.Items[i])
	}
	return others, nil
}
