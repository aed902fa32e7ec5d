package backup

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"strings"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

// bucket is a prefix in a bucket of S3, or of a server that is compatible with it.
type bucket struct {
	client       minio.Core
	name, prefix string
}

// openBucket opens BUCKET/PREFIX, with the environment variables that other programs use.
func openBucket(place string) (files, error) {
	name, prefix, _ := strings.Cut(place, "/")
	at, err := url.Parse(cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"), "https://s3.amazonaws.com"))
	if err != nil {
		return nil, fmt.Errorf("AWS_ENDPOINT_URL: %w", err)
	}
	client, err := minio.NewCore(at.Host, &minio.Options{
		Secure: at.Scheme != "http", Region: os.Getenv("AWS_REGION"),
		Creds: credentials.NewChainCredentials([]credentials.Provider{
			&credentials.EnvAWS{}, &credentials.FileAWSCredentials{}, &credentials.IAM{},
		}),
	})
	if err != nil {
		return nil, fmt.Errorf("s3://%s at %s: %w", place, at, err)
	}
	return &bucket{*client, name, prefix}, nil
}

func (b *bucket) key(name string) string { return path.Join(b.prefix, name) }

// failed adds the object to an error of the server.
func (b *bucket) failed(name string, err error) error {
	if err != nil {
		err = fmt.Errorf("s3://%s/%s: %w", b.name, b.key(name), err)
	}
	return err
}

func (b *bucket) put(ctx context.Context, name string, from io.Reader, size int64) error {
	// Without TLS it would sign piece by piece, and an empty file would have no length.
	_, err := b.client.Client.PutObject(ctx, b.name, b.key(name), from, size, minio.PutObjectOptions{DisableContentSha256: true})
	return b.failed(name, err)
}

func (b *bucket) get(ctx context.Context, name string) (io.ReadCloser, error) {
	r, _, _, err := b.client.GetObject(ctx, b.name, b.key(name), minio.GetObjectOptions{})
	return r, b.failed(name, err)
}

func (b *bucket) list(ctx context.Context, folder string) (map[string]int64, error) {
	sizes := map[string]int64{}
	for o := range b.client.ListObjectsIter(ctx, b.name, minio.ListObjectsOptions{Prefix: b.key(folder) + "/"}) {
		if o.Err != nil {
			return nil, b.failed(folder, o.Err)
		}
		sizes[path.Base(o.Key)] = o.Size
	}
	return sizes, b.failed(folder, ctx.Err())
}

func (b *bucket) delete(ctx context.Context, name string) error {
	return b.failed(name, b.client.RemoveObject(ctx, b.name, b.key(name), minio.RemoveObjectOptions{}))
}
